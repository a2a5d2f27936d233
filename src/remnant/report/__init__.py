"""Run folders in; every table and figure of the paper, and one page to read them on, out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remnant.experiments.runs.files import RunError

if TYPE_CHECKING:
    from .write import Written

__all__ = ["write_report"]


def write_report(roots: Sequence[Path], target: Path, docs: Path | None = None) -> Written:
    """Reads the runs below `roots` and writes index.html, figures/ and tables/ to `target`; to `docs`, the project's page."""
    try:
        from .write import write_report as write
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("matplotlib", "jinja2"):
            raise
        raise RunError(f"The report needs {package}, which is not installed: pip install 'remnant[report]'.") from None
    return write(roots, target, docs)
