"""Reports: turns run folders into comparisons, the paper's tables and figures, and one page that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remnant.errors import UserError
from remnant.lazy import lazy_exports

from .comparison import Compared, compare_runs
from .comparison_files import comparison_rows, comparison_text, save_comparison
from .one_run import open_run
from .two_runs import difference, matrix_difference

if TYPE_CHECKING:
    from .content import Content
    from .watch import watch_report
else:  # these import matplotlib and Jinja, which may be missing
    __getattr__, __dir__ = lazy_exports(__name__, {"Content": ".content", "watch_report": ".watch"})

__all__ = [
    "Compared",
    "Content",
    "compare_runs",
    "comparison_rows",
    "comparison_text",
    "difference",
    "matrix_difference",
    "naming_missing_packages",
    "open_run",
    "save_comparison",
    "watch_report",
    "write_report",
]


@contextmanager
def naming_missing_packages(what: str) -> Iterator[None]:
    """Turns a missing matplotlib or Jinja into a UserError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("matplotlib", "jinja2"):
            raise
        raise UserError(
            f"{what} needs {package}, which is not installed: pip install matplotlib jinja2 scipy."
        ) from None


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
    with naming_missing_packages("The report"):
        from .page import write_report as write
    return write(roots, target, docs)
