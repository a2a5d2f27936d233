"""A run remembers the code and the user's files it was made with, and notices when they change."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from remnant.errors import RunError, UserError
from remnant.experiments.execute import Plan, Progress, run, unfinished
from remnant.experiments.runs import RunFolder, provenance
from remnant.experiments.settings import Settings, resolve

FEW = ("stream.tasks=2", "training.epochs=1", "training.batch=20")
OWN = """
import torch
from remnant.data import Stream

def stream(seed):
    x = [torch.randn(100, 6, generator=torch.Generator().manual_seed(seed + n)) for n in range(2)]
    return Stream.from_arrays([(x, (x[:, 0] > 0).long()) for x in x], test=0.3, valid=0.2)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def plan_of(own: Path, *seeds: int) -> Plan:
    settings = resolve(f"{own}:stream", "finetune", ["training.epochs=1"])
    return Plan(settings, seeds, own.parent / "runs", "cpu")


def said_of(plan: Plan) -> tuple[list[RunFolder], list[str]]:
    heard: list[Progress] = []
    folders = run(plan, heard.append)
    return folders, [f"{p.seed}: {p.note}" for p in heard if p.note]


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"remnant": "0.1.0", "commit": "0123456789abcdef", "modified": False}, "commit 0123456"),
        ({"remnant": "0.1.0", "commit": "0123456789abcdef", "modified": True}, "commit 0123456 with changes"),
        ({"remnant": "0.1.0", "commit": None, "modified": None}, "remnant 0.1.0"),
        ({}, "remnant of an unknown release"),
        ("[", "remnant of an unknown release"),  # damaged: no reason not to show a result
    ],
)
def test_a_finished_run_is_not_run_again_and_a_note_says_so(environment: object, code: str, tmp_path: Path) -> None:
    plan = Plan(resolve("permuted-digits", "finetune", FEW), (4,), tmp_path, "cpu")
    (folder,), said = said_of(plan)
    assert said == []
    os.utime(folder.path / "result.json", (1_000_000_000, 1_000_000_000))  # in September 2001, wherever one lives
    text = environment if isinstance(environment, str) else json.dumps(environment)
    (folder.path / "environment.json").write_text(text)
    _, (note,) = said_of(plan)
    assert re.fullmatch(
        rf"4: already finished \(2001-09-\d\d \d\d:\d\d, {code}\); remove {folder.path} to run it again",
        note,
    )


def test_new_seeds_run_and_only_finished_ones_get_a_note(own: Path) -> None:
    said_of(plan_of(own, 0))
    folders, (note,) = said_of(plan_of(own, 0, 1))
    assert all(folder.finished for folder in folders)
    assert note.startswith("0: already finished")


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_result_of_a_changed_stream_file_is_refused(seeds: tuple[int, ...], own: Path) -> None:
    (folder,), _ = said_of(plan_of(own, 0))
    own.write_text(OWN.replace("> 0)", "> 0.5)"))
    with pytest.raises(
        RunError, match=r"seed0 was made with another version of .*own\.py\. Restore that version.*remove .*--runs"
    ):
        run(plan_of(own, *reversed(seeds)), lambda progress: None)
    assert folder.finished
    assert not (folder.path.parent / "seed1").exists()
    own.write_text(OWN)
    assert said_of(plan_of(own, 0))[1][0].startswith("0: already finished")


def test_a_run_is_not_resumed_with_a_changed_stream_file(own: Path) -> None:
    plan_of(own, 0).folder(0).record(task=0, epoch=1)  # and then it was killed
    own.write_text(OWN.replace("> 0)", "> 0.5)"))
    ((resumed,), _) = unfinished(own.parent / "runs", "cpu", 1)
    with pytest.raises(RunError, match="was made with another version of"):
        run(resumed, lambda progress: None)


def forget_hash(folder: RunFolder) -> None:
    noted = folder.environment()
    assert noted is not None
    assert re.fullmatch("[0-9a-f]{16}", noted.pop("stream_file"))
    (folder.path / "environment.json").write_text(json.dumps(noted))


def test_a_file_that_was_not_noted_is_run_only_if_it_is_trusted(own: Path) -> None:
    folder = plan_of(own, 0).folder(0)
    forget_hash(folder)
    plans, (problem,) = unfinished(own.parent / "runs", "cpu", 1)
    assert not plans
    assert problem.startswith(f"{folder.path} would run {own}, which was not recorded")
    questions: list[str] = []
    ((resumed,), _) = unfinished(own.parent / "runs", "cpu", 1, lambda text: not questions.append(text))
    assert questions == [problem.partition(". Read the file")[0]]
    assert run(resumed, lambda progress: None)[0].finished


@pytest.mark.parametrize("place", ["", "seed0"])
def test_a_file_among_the_files_of_the_run_is_asked_about(place: str, tmp_path: Path) -> None:
    """Even if its hash is noted: whoever made the folder wrote both."""
    settings = resolve("permuted-digits", "finetune", FEW)
    plan = Plan(settings, (0,), tmp_path / "runs", "cpu")
    folder = plan.folder(0)
    file = folder.path.parents[1] / "own.py" if not place else folder.path / "own.py"
    file.write_text("raise AssertionError('it was run')")
    content = json.loads((folder.path / "settings.json").read_text())
    content["settings"]["network"]["name"] = f"{file}:Net"
    forged = Settings.from_dict(content["settings"])
    folder = RunFolder.create(tmp_path / "runs", forged, 0)
    plans, problems = unfinished(tmp_path / "runs", "cpu", 1)
    assert [plan.settings for plan in plans] == [settings]
    assert "own.py, which was not recorded at the start or is in the run's folder" in problems[0]


METHOD_AND_NETWORK = """
from remnant.methods import Method
from remnant.models import MLP

class Plain(Method):
    name = "plain"

class Net(MLP):
    def __init__(self, input_shape, classes, *, width: int = 8) -> None:
        super().__init__(input_shape, classes, hidden=[width])
"""


@pytest.mark.parametrize("part", ["method", "network"])
def test_the_files_of_a_method_and_a_network_are_noted_and_checked(part: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD_AND_NETWORK)
    method = f"{file}:Plain" if part == "method" else "finetune"
    network = [f"network.name={file}:Net"] if part == "network" else []
    plan = Plan(resolve("permuted-digits", method, [*FEW, *network]), (0,), tmp_path / "runs", "cpu")
    (folder,) = run(plan)
    noted = folder.environment()
    assert noted is not None
    assert [key for key in noted if key.endswith("_file")] == [f"{part}_file"]
    file.write_text(f"{METHOD_AND_NETWORK}# changed")
    with pytest.raises(RunError, match=r"another version of .*mine\.py"):
        run(plan)
    file.write_text(METHOD_AND_NETWORK)
    assert run(plan)[0].finished


def test_a_built_in_stream_has_no_file_to_note(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, resolve("permuted-digits", "finetune"), 0)
    environment = folder.environment()
    assert environment is not None
    assert "stream_file" not in environment


def cut_off(root: Path) -> Plan:
    """The plan of a run that was killed after its first task."""
    plan = Plan(resolve("permuted-digits", "finetune", FEW), (0,), root, "cpu")

    def kill(progress: Progress) -> None:
        if progress.row:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, kill)
    return plan


def test_resuming_with_other_code_warns_and_notes_both_versions(tmp_path: Path) -> None:
    plan = cut_off(tmp_path)
    folder = plan.folder(0)
    begun = folder.environment()
    assert begun is not None
    before = {"remnant": begun["remnant"], "commit": "0123456789abcdef", "modified": False}
    folder.save_environment({**begun, **before})
    _, said = said_of(plan)
    (note,) = (note for note in said if "but started with" in note)
    assert re.match(r"0: resumed with .*, but started with commit 0123456: if the method has changed", note)
    environment = folder.environment()
    assert environment == {**begun, "before": [before]}
    _, (told,) = said_of(plan)
    assert re.search(r"already finished \(.* after commit 0123456\)", told)


def test_resuming_with_the_same_code_does_not_warn(tmp_path: Path) -> None:
    plan = cut_off(tmp_path)
    _, (note,) = said_of(plan)
    assert note.startswith("0: resumed at task 2")


def test_data_that_is_gone_is_named_before_anything_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "points").mkdir()
    np.savez(tmp_path / "points/all.npz", x=np.zeros((20, 4)), y=np.arange(20) % 2)
    settings = resolve(f"{tmp_path / 'points'}/", "finetune", ["training.epochs=1"])
    Plan(settings, (0,), tmp_path / "runs", "cpu").folder(0).record(task=0, epoch=1)  # and then it was killed
    hashed: list[Path] = []
    monkeypatch.setattr(provenance, "fingerprint", lambda path: str(hashed.append(path)))
    ((resumed,), problems) = unfinished(tmp_path / "runs", "cpu", 1)
    assert (hashed, problems) == ([], [])  # only code is asked about, and its content does not matter
    (tmp_path / "points/all.npz").rename(tmp_path / "all.npz")
    (tmp_path / "points").rmdir()
    (tmp_path / "points").write_text("a file in place of the folder")
    with pytest.raises(UserError, match=r"There is no folder .*points/, nor an"):
        run(resumed, lambda progress: None)
    (tmp_path / "points").unlink()
    (tmp_path / "points/within").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "points/within")
    with pytest.raises(UserError, match="is the folder you are in, or holds it"):
        run(resumed, lambda progress: None)
    assert hashed == []
