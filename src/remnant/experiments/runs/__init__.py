"""Run folders: the files of a run, written safely and read with checks. A `RunError` names the file that is wrong."""

from .contents import CHECKPOINT_SHAPE, METRICS, DriftHistogram, RunContents, RunResult, check, check_alike
from .find import find_runs, keep_results, readable_runs, run_folders
from .folder import RunFolder, folder_name
from .provenance import check_files, doubtful_files, environment, finished_before, note_code

__all__ = [
    "CHECKPOINT_SHAPE",
    "METRICS",
    "DriftHistogram",
    "RunContents",
    "RunFolder",
    "RunResult",
    "check",
    "check_alike",
    "check_files",
    "doubtful_files",
    "environment",
    "find_runs",
    "finished_before",
    "folder_name",
    "keep_results",
    "note_code",
    "readable_runs",
    "run_folders",
]
