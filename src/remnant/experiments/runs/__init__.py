"""Run folders: the files of a run, written safely and read with checks. A `RunError` names the file that is wrong."""

from .cleaning import KINDS, Unwanted, find_unwanted, is_being_written, remove_run
from .contents import CHECKPOINT_SHAPE, DriftHistogram, File, RunContents, RunResult, check, check_alike, read_result
from .find import find_runs, keep_results, readable_runs, run_folders
from .folder import RunFolder, folder_name
from .provenance import check_files, doubtful_files, environment, finished_before, note_code

__all__ = [
    "CHECKPOINT_SHAPE",
    "KINDS",
    "DriftHistogram",
    "File",
    "RunContents",
    "RunFolder",
    "RunResult",
    "Unwanted",
    "check",
    "check_alike",
    "check_files",
    "doubtful_files",
    "environment",
    "find_runs",
    "find_unwanted",
    "finished_before",
    "folder_name",
    "is_being_written",
    "keep_results",
    "note_code",
    "read_result",
    "readable_runs",
    "remove_run",
    "run_folders",
]
