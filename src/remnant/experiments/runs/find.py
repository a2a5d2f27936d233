"""Finds runs below a folder, and copies the small files of finished ones."""

from pathlib import Path

from remnant.errors import RunError
from remnant.files import explained, read, write

from .contents import File
from .folder import RunFolder


def find_runs(root: Path) -> list[RunFolder]:
    """Finds all runs in a folder, ordered by path and seed.

    Args:
        root: A run folder, or a folder that contains runs at any depth, such as `runs/` or `results/`.

    Raises:
        RunError: If the settings of a run cannot be read.

    Example:
        >>> [run.seed for run in find_runs(Path("runs")) if run.finished]  # doctest: +SKIP
        [0, 1, 2]
    """
    found, problems = readable_runs(root)
    if problems:
        raise RunError(problems[0])
    return found


def readable_runs(root: Path) -> tuple[list[RunFolder], list[str]]:
    """Returns every run at or below `root` that can be read, and a sentence for each that cannot."""
    found, problems = [], []
    for path in run_folders(root):
        try:
            if (path / File.SETTINGS).is_file():
                found.append(RunFolder.open(path))
        except RunError as error:
            problems.append(str(error))
    return sorted(found, key=lambda run: (run.path.parent, run.seed)), problems


def run_folders(root: Path) -> list[Path]:
    """Returns every folder at or below `root` with files of a run, even if settings.json is missing."""
    if (root / File.SETTINGS).is_file():
        return [root]
    files = (File.SETTINGS, File.ACCURACY, File.RANKS, File.RESULT, File.METRICS)
    return sorted(path for path in root.rglob("seed*") if path.is_dir() and any((path / f).is_file() for f in files))


def keep_results(run: RunFolder, target: Path) -> Path:
    """Copies a finished run's small files (no metrics, no checkpoints) to the same path below `target`, and returns it.

    An older copy with the same accuracies is replaced as a whole: its result is removed first and the new one written last.

    Raises:
        RunError: If the run is not finished, or another result of it is there.
    """
    if not run.finished:
        raise RunError(f"{run.path} is not finished: it has no {File.RESULT} yet. Resume it first.")
    kept = Path(target) / run.relative_path
    with explained(kept):
        kept.mkdir(parents=True, exist_ok=True)
        if kept.samefile(run.path):
            return kept
        there = read(kept / File.ACCURACY) if (kept / File.RESULT).is_file() else None
        if there and there != read(run.path / File.ACCURACY):
            raise RunError(
                f"{kept} has other accuracies than {run.path}, perhaps from another machine, and was not replaced. Remove "
                "the folder to keep the new ones, or keep them elsewhere."
            )
        (kept / File.RESULT).unlink(missing_ok=True)
    for name in (File.SETTINGS, File.ENVIRONMENT, File.ACCURACY, File.RANKS, File.DRIFT, File.RESULT):
        if (data := read(run.path / name)) is not None:
            write(kept / name, data)
        else:
            with explained(kept / name):
                (kept / name).unlink(missing_ok=True)
    return kept
