"""Reports: run folders in; the paper's tables and figures, and one page that shows them, out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remnant.errors import UserError

if TYPE_CHECKING:
    from .content import Content

__all__ = ["write_report"]


def write_report(roots: Sequence[Path], target: Path, docs: Path | None = None) -> Content:
    """Writes index.html, figures/ and tables/ for all runs below some folders.

    Args:
        roots: Folders with run folders in them. If two runs have the same settings and seed, the first one counts.
        target: The folder of the report. Files of an older report that are no longer needed are removed.
        docs: If given, results.md and its figures are written to this folder too.

    Returns:
        Everything that the report shows.

    Raises:
        UserError: A folder is missing, no folder holds a run, a file cannot be written, or matplotlib or Jinja is missing.
    """
    try:
        from .page import write_report as write
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("matplotlib", "jinja2"):
            raise
        raise UserError(f"The report needs {package}, which is not installed: pip install 'remnant[report]'.") from None
    return write(roots, target, docs)
