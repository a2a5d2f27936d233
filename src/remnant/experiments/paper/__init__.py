"""The paper's tables as data, their reproduction, and the training times of Table 2."""

from .reproduce import Reproduction, TimingJob, finished_results, keep
from .tables import (
    Comparison,
    ResultKey,
    Results,
    Row,
    Table,
    compare,
    comparison_rows,
    load_table,
    select_tables,
    table_names,
)
from .timing import TIMES_FOLDER, Timing, load_timings, relative_to_gpm, save_timings

__all__ = [
    "TIMES_FOLDER",
    "Comparison",
    "Reproduction",
    "ResultKey",
    "Results",
    "Row",
    "Table",
    "Timing",
    "TimingJob",
    "compare",
    "comparison_rows",
    "finished_results",
    "keep",
    "load_table",
    "load_timings",
    "relative_to_gpm",
    "save_timings",
    "select_tables",
    "table_names",
]
