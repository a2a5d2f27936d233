"""The paper's tables as data, their reproduction, and the training times of Table 2."""

from .reproduce import Reproduction, TimingJob, keep
from .tables import NOT_RUN, QUANTITIES, TABLES, FilledRow, Results, Row, Table, fill, load_table, select_tables
from .timing import TIMES_FOLDER, Timing, load_timings, relative_to_gpm, save_timings

__all__ = [
    "NOT_RUN",
    "QUANTITIES",
    "TABLES",
    "TIMES_FOLDER",
    "FilledRow",
    "Reproduction",
    "Results",
    "Row",
    "Table",
    "Timing",
    "TimingJob",
    "fill",
    "keep",
    "load_table",
    "load_timings",
    "relative_to_gpm",
    "save_timings",
    "select_tables",
]
