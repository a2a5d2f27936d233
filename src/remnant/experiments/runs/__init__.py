"""Run folders: the files of a run, written safely and read with checks. A `RunError` names the file that is wrong."""

from .contents import DriftHistogram, RunContents, RunResult
from .files import RunError, damaged, explained, folder_name, read_json, run_path, write, write_json
from .find import find_runs, keep_results, readable_runs, run_folders
from .folder import RunFolder
from .provenance import check_files, environment, finished_before, note_code

__all__ = [
    "DriftHistogram",
    "RunContents",
    "RunError",
    "RunFolder",
    "RunResult",
    "check_files",
    "damaged",
    "environment",
    "explained",
    "find_runs",
    "finished_before",
    "folder_name",
    "keep_results",
    "note_code",
    "read_json",
    "readable_runs",
    "run_folders",
    "run_path",
    "write",
    "write_json",
]
