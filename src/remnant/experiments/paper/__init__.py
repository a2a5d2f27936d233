"""The paper's tables as data, their reproduction, and the training times of Table 2."""

from .reproduce import Reproduction, TimingJob, keep
from .tables import TABLES, Comparison, Results, Row, Table, compare, load_table, select_tables
from .timing import TIMES_FOLDER, Timing, load_timings, relative_to_gpm, save_timings

__all__ = [
    "TABLES",
    "TIMES_FOLDER",
    "Comparison",
    "Reproduction",
    "Results",
    "Row",
    "Table",
    "Timing",
    "TimingJob",
    "compare",
    "keep",
    "load_table",
    "load_timings",
    "relative_to_gpm",
    "save_timings",
    "select_tables",
]
