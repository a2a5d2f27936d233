"""Unwanted runs are found and removed. Nothing else is touched: no live run, no link, no file of another program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remnant.errors import RunError
from remnant.evaluation import AccuracyMatrix
from remnant.experiments.runs import RunFolder, Unwanted, find_unwanted, remove_run
from remnant.experiments.settings import resolve

SETTINGS = resolve("permuted-digits", "gpm")


def unfinished(root: Path, seed: int = 0) -> RunFolder:
    run = RunFolder.create(root, SETTINGS, seed, execution={"drift": False})
    run.save_matrix(AccuracyMatrix(2, [[0.9]]))
    run.record(task=0, epoch=1, loss=0.5)
    run.save_checkpoint({"a": 1})
    with run.lock():
        pass
    return run


def finished(root: Path, seed: int = 0, acc: float = 0.5) -> RunFolder:
    run = unfinished(root, seed)
    run.clear_checkpoints()
    run.save_matrix(AccuracyMatrix(2, [[0.9], [acc, acc]]))
    run.save_result({"acc": acc, "bwt": 0.0, "seconds": {"train": 1.0}})
    return run


def found(root: Path) -> dict[Path, str]:
    return {run.path: run.kind for run in find_unwanted(root)[0]}


def only(root: Path) -> Unwanted:
    (run,) = find_unwanted(root)[0]
    return run


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_finished_runs_are_wanted(tmp_path: Path) -> None:
    finished(tmp_path, 0)
    finished(tmp_path, 1)
    assert find_unwanted(tmp_path) == ([], [])


def test_listing_changes_no_file(tmp_path: Path) -> None:
    broken = finished(tmp_path, 1)
    (broken.path / "settings.json").write_text("{", encoding="utf-8")
    (unfinished(tmp_path, 2).path / ".lock").unlink()
    before = snapshot(tmp_path)
    assert set(found(tmp_path).values()) == {"unfinished", "corrupted"}
    assert snapshot(tmp_path) == before


def test_an_unfinished_run_is_removed_with_its_empty_folders(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run = unfinished(root)
    assert only(root) == Unwanted(run.path, "unfinished", "1 of 2 tasks done")
    remove_run(only(root), root)
    assert list(root.iterdir()) == []
    assert root.is_dir()


def test_other_seeds_stay(tmp_path: Path) -> None:
    kept, run = finished(tmp_path, 0), unfinished(tmp_path, 1)
    before = snapshot(kept.path)
    remove_run(only(tmp_path), tmp_path)
    assert not run.path.exists()
    assert snapshot(kept.path) == before


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("settings.json", "{"),
        ("settings.json", None),
        ("result.json", '{"acc": 7}'),
        ("accuracy.csv", "[rot]"),
        ("accuracy.csv", None),
        ("ranks.json", "[]"),
    ],
)
def test_a_corrupted_run(tmp_path: Path, file: str, content: str | None) -> None:
    path = finished(tmp_path).path / file
    path.unlink(missing_ok=True) if content is None else path.write_text(content, encoding="utf-8")
    assert only(tmp_path).kind == "corrupted"
    assert file in only(tmp_path).reason
    remove_run(only(tmp_path), tmp_path)
    assert not path.parent.exists()


def test_a_copy_is_a_duplicate_and_the_original_stays(tmp_path: Path) -> None:
    original = finished(tmp_path / "runs")
    # A folder that comes first by name: the copy is still the one to remove.
    copy = Path(shutil.copytree(original.path, tmp_path / "runs" / "backup" / "seed0"))
    run = only(tmp_path / "runs")
    assert (run.path, run.kind, run.twin) == (copy, "duplicate", original.path)
    remove_run(run, tmp_path / "runs")
    assert original.finished
    assert not copy.parent.exists()


def test_a_duplicate_stays_if_its_twin_is_gone(tmp_path: Path) -> None:
    original = finished(tmp_path)
    copy = Path(shutil.copytree(original.path, tmp_path / "backup" / "seed0"))
    run = only(tmp_path)
    shutil.rmtree(original.path)
    with pytest.raises(RunError, match=r"was not removed.*is gone"):
        remove_run(run, tmp_path)
    assert (copy / "result.json").is_file()


def test_a_run_with_the_same_settings_but_other_accuracies_is_no_duplicate(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    finished(tmp_path / "b", acc=0.6)
    unwanted, left = find_unwanted(tmp_path)
    assert unwanted == []
    assert "with other accuracies" in left[0]


def test_a_run_that_was_finished_after_it_was_listed_stays(tmp_path: Path) -> None:
    unfinished(tmp_path)
    run = only(tmp_path)
    before = snapshot(finished(tmp_path).path)
    with pytest.raises(RunError, match=r"was not removed, because it has been finished since it was listed"):
        remove_run(run, tmp_path)
    assert snapshot(run.path) == before


def test_a_run_that_a_live_process_writes_is_never_touched(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    listed = only(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom remnant.experiments.runs import RunFolder\n"
        "with RunFolder.open(Path(sys.argv[1])).lock():\n    print('locked', flush=True)\n    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(run.path)], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "locked\n"
        try:
            unwanted, left = find_unwanted(tmp_path)
            assert unwanted == []
            assert left == [f"{run.path} is being written by another process"]
            with pytest.raises(RunError, match="is being written by another process"):
                remove_run(listed, tmp_path)
            assert (run.path / "settings.json").is_file()
        finally:
            process.communicate("")
    assert found(tmp_path) == {run.path: "unfinished"}  # once the process has ended


def test_files_that_are_not_the_runs_own_stay(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    (run.path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match=r"still has notes\.txt\. Only"):
        remove_run(only(tmp_path), tmp_path)
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]
    assert found(tmp_path) == {}


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = unfinished(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "seed0").symlink_to(elsewhere.path, target_is_directory=True)
    (tmp_path / "runs" / "all").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    unwanted, left = find_unwanted(tmp_path / "runs")
    assert unwanted == []
    assert left == [f"{tmp_path / 'runs' / 'seed0'} is a link"]


def test_folders_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    for name in ("seed1", "seeds", "data/seed-2020"):
        folder = tmp_path / "outputs" / name
        folder.mkdir(parents=True)
        for file in ("settings.json", "metrics.jsonl", "result.json"):
            (folder / file).write_text('{"theirs": 1}', encoding="utf-8")
    unwanted, left = find_unwanted(tmp_path)
    assert unwanted == []
    assert len(left) == 3
    assert find_unwanted(tmp_path / "outputs" / "seed1")[0] == []


def test_an_interrupted_removal_leaves_a_run_that_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = len(list(finished(tmp_path).path.iterdir()))
    for after in range(files - 1):
        shutil.rmtree(tmp_path)
        original = finished(tmp_path)
        copy = Path(shutil.copytree(original.path, tmp_path / "backup" / "seed0"))
        run, left = only(tmp_path), after

        def unlink(path: Path, missing_ok: bool = False) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            os.unlink(path)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", unlink)
            with pytest.raises(KeyboardInterrupt):
                remove_run(run, tmp_path)
        if (copy / "settings.json").exists():
            assert list(found(tmp_path)) == [copy]
            remove_run(only(tmp_path), tmp_path)
            assert not copy.exists()
        assert original.finished


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a folder"):
        find_unwanted(tmp_path / "nowhere")
