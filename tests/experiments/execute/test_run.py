"""A whole run, and the files it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remnant.errors import RunError
from remnant.evaluation import average_accuracy, backward_transfer, learning_accuracy
from remnant.experiments.execute import Plan, Progress, pick_devices, run_together, unfinished
from remnant.experiments.execute import run as run_plan
from remnant.experiments.execute.processes import Processes
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import resolve

FEW = ("stream.tasks=3", "training.epochs=2", "training.batch=20")
OWN = """
import torch
from remnant.data import Stream

def stream(seed, tasks=3, valid=0.2):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(100, 6, generator=g) for _ in range(tasks)]
    return Stream.from_arrays([(x, x[:, : 2 + n].argmax(1)) for n, x in enumerate(x)], test=0.3, valid=valid)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path / 'own.py'}:stream"


def plan(
    method: str,
    root: Path,
    *overrides: str,
    benchmark: str = "permuted-digits",
    seeds: tuple[int, ...] = (0,),
    **how: Any,
) -> Plan:
    settings = resolve(benchmark, method, overrides or FEW)
    return Plan(settings, seeds, root, "cpu", **{"deterministic": True, **how})


def run(asked: Plan) -> tuple[RunFolder, list[Progress]]:
    heard: list[Progress] = []
    folders = run_plan(asked, heard.append)
    return folders[0], heard


def contents(folder: RunFolder) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.path.iterdir()}


def test_a_run_leaves_matrix_ranks_metrics_result_and_environment(tmp_path: Path) -> None:
    folder, heard = run(plan("gpm", tmp_path))
    assert sorted(path.name for path in folder.path.iterdir()) == [
        ".lock",
        "accuracy.csv",
        "environment.json",
        "execution.json",
        "metrics.jsonl",
        "ranks.json",
        "result.json",
        "settings.json",
    ]
    matrix, result, ranks, environment = folder.matrix(), folder.result(), folder.ranks(), folder.environment()
    assert matrix is not None
    assert result is not None
    assert ranks is not None
    assert environment is not None
    assert matrix.learned == 3
    assert result["acc"] == average_accuracy(matrix)
    assert result["bwt"] == backward_transfer(matrix)
    assert result["learning_accuracy"] == learning_accuracy(matrix)
    assert result["acc"] > 0.5  # it learns
    assert result["validation_acc"] == pytest.approx(result["acc"], abs=0.1)  # other examples of the same tasks
    assert result["validation_acc"] != result["acc"]
    assert result["validation_bwt"] == pytest.approx(result["bwt"], abs=0.1)
    assert result["validation_bwt"] != result["bwt"]
    assert {name: len(added) for name, added in ranks.items()} == {"hidden.0": 3, "hidden.1": 3, "head": 3}
    assert sum(ranks["hidden.0"]) <= 64
    assert ranks["hidden.0"][0] > 1
    assert result["parameters"] == 64 * 100 + 100 * 100 + 100 * 10
    assert result["capacity"] == 1.0
    assert result["memory_bytes"] > 0
    assert result["seconds"].keys() == {"train", "evaluate", "consolidate"}
    assert all(seconds > 0 for seconds in result["seconds"].values())
    assert environment["threads"] == 1

    lines = folder.metrics()
    assert [(line["task"], line["epoch"]) for line in lines] == [(t, e) for t in range(3) for e in (1, 2)]
    assert all(0 < line["loss"] < 5 and 0 <= line["valid_accuracy"] <= 1 for line in lines)
    assert sum(line["seconds"] for line in lines) <= result["seconds"]["train"]
    assert [(p.task, p.epoch.epoch) for p in heard if p.epoch] == [(t, e) for t in range(3) for e in (1, 2)]
    rows = [p.row for p in heard if p.row]
    assert rows == [tuple(matrix.values[t, : t + 1]) for t in range(3)]
    assert heard[-1].finished
    assert heard[-1].seconds == sum(result["seconds"].values())


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path: Path) -> None:
    matrices = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(hash(name) % 1000)  # whatever was drawn before
        folder, _ = run(plan("gpm", tmp_path / name, seeds=(seed,)))
        lines = [(line["loss"], line["valid_loss"]) for line in folder.metrics()]
        matrices.append(((folder.path / "accuracy.csv").read_bytes(), lines, folder.ranks()))
    assert matrices[0] == matrices[1]
    assert matrices[0] != matrices[2]


def test_fast_steps_end_where_plain_ones_do(tmp_path: Path) -> None:
    """The mean ACC of the same seeds agrees within 0.1 points; sums are rounded in another order."""
    accs = {}
    for steps in ("auto", "eager"):
        asked = [plan("gpm", tmp_path / steps, seeds=(seed,), steps=steps) for seed in range(3)]
        accs[steps] = np.mean([run(one)[0].result()["acc"] for one in asked])  # type: ignore[index]
    assert accs["auto"] == pytest.approx(accs["eager"], abs=0.001)


@pytest.mark.parametrize(("steps", "notes"), [("captured", 1), ("auto", 0), ("eager", 0)])
def test_steps_that_cannot_be_captured_give_one_note(steps: str, notes: int, tmp_path: Path) -> None:
    _, heard = run(plan("finetune", tmp_path, steps=steps))
    said = [p.note for p in heard if p.note]
    assert said == ["steps are not captured: CUDA graphs need a GPU, and this run is on the CPU"] * notes


def test_running_again_does_nothing(tmp_path: Path) -> None:
    folder, _ = run(plan("finetune", tmp_path))
    before = contents(folder)
    again, heard = run(plan("finetune", tmp_path))
    assert again.path == folder.path
    assert contents(again) == before
    assert [p.note.partition(" (")[0] for p in heard] == ["already finished"]


@pytest.mark.usefixtures("quick_children")
def test_two_seeds_in_processes_equal_two_seeds_alone(tmp_path: Path) -> None:
    heard: list[Progress] = []
    together = run_plan(plan("gpm", tmp_path / "together", seeds=(0, 3)), heard.append)
    assert [folder.seed for folder in together] == [0, 3]
    assert {p.seed for p in heard if p.finished} == {0, 3}
    for folder in together:
        alone, _ = run(plan("gpm", tmp_path / "alone", seeds=(folder.seed,)))
        assert (alone.path / "accuracy.csv").read_bytes() == (folder.path / "accuracy.csv").read_bytes()
        environment = folder.environment()
        assert environment is not None
        assert environment["threads"] == 1


@pytest.mark.usefixtures("quick_children")
def test_an_error_in_a_child_process_is_reported_and_another_plan_runs(tmp_path: Path) -> None:
    """Two CPU workers stand for two GPUs, and take three jobs of two plans."""
    bad, good = plan("gpm", tmp_path, *FEW, "lr=10", seeds=(0, 1)), plan("finetune", tmp_path / "workers", *FEW)
    heard: list[Progress] = []
    workers = Processes([torch.device("cpu")] * 2)
    failed, done = run_together([bad, good], [lambda progress: None, heard.append], workers)
    assert isinstance(failed, RunError)
    assert re.match(r"Seed 0, task 1 of 3: .*diverge.* Seed 1, .* Finished tasks are kept", str(failed))
    assert [progress.task for progress in heard if progress.row] == [0, 1, 2]
    assert isinstance(done, list)
    alone, _ = run(plan("finetune", tmp_path / "alone", *FEW))
    assert (alone.path / "accuracy.csv").read_bytes() == (done[0].path / "accuracy.csv").read_bytes()


@pytest.mark.parametrize("benchmark", ["permuted-digits", "own"])
def test_joint_training_has_one_row_and_an_acc(benchmark: str, own: str, tmp_path: Path) -> None:
    if benchmark == "own":
        asked = plan("multitask", tmp_path, "training.epochs=20", "training.batch=10", benchmark=own)
    else:
        asked = plan("multitask", tmp_path, *FEW)
    folder, _ = run(asked)
    matrix, result = folder.matrix(), folder.result()
    assert matrix is not None
    assert result is not None
    assert np.isnan(matrix.values[:2]).all()
    assert not np.isnan(matrix.values[2]).any()
    assert result["acc"] == matrix.values[2].mean()
    assert result["acc"] > 0.6
    assert result["bwt"] is None
    assert folder.ranks() is None
    last = folder.metrics()[-1]
    assert result["validation_acc"] == pytest.approx(last["valid_accuracy"])  # tasks of one size, and no epoch after
    assert last["valid_accuracy"] > 0.6  # measured by each task's own head, where it has one


@pytest.mark.parametrize("valid", [0.0, 0.2])
@pytest.mark.parametrize("method", ["gpm", "finetune", "multitask", "single-task", "er", "agem", "gem", "ogd", "owm"])
def test_every_method_runs_on_a_users_own_stream(method: str, valid: float, own: str, tmp_path: Path) -> None:
    overrides = ("training.epochs=3", "training.batch=70", f"stream.valid={valid}")  # a batch larger than a task
    folder, _ = run(plan(method, tmp_path, *overrides, benchmark=own))
    matrix, result = folder.matrix(), folder.result()
    assert matrix is not None
    assert result is not None
    assert matrix.learned == 3
    assert 0 <= result["acc"] <= 1
    assert (result["validation_acc"] is None) == (valid == 0)
    assert result["capacity"] == (3.0 if method == "single-task" else 1.0)
    assert all((line["valid_loss"] is None) == (valid == 0) for line in folder.metrics())


def test_single_task_networks_forget_nothing(tmp_path: Path) -> None:
    folder, _ = run(plan("single-task", tmp_path))
    matrix = folder.matrix()
    assert matrix is not None
    assert backward_transfer(matrix) == 0
    assert (matrix.values[2] == matrix.values.diagonal()).all()


def test_a_full_layer_is_a_note_and_no_python_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    _, heard = run(plan("gpm", tmp_path, *FEW, "threshold=1.0", "network.hidden=[8]", "samples=300"))
    notes = [p.note for p in heard if p.note]
    assert len([note for note in notes if "These layers are full" in note]) == len(notes) > 0
    assert not [warning for warning in recwarn if "These layers are full" in str(warning.message)]


def test_early_stopping_ends_a_task_before_its_epochs_do(tmp_path: Path) -> None:
    stop = ("training.epochs=30", "training.patience=1", "training.factor=2", "training.lr_min=0.04")
    folder, _ = run(plan("finetune", tmp_path, "stream.tasks=3", "training.batch=20", *stop))
    epochs = [line["epoch"] for line in folder.metrics()]
    assert max(epochs) < 30
    assert {line["task"] for line in folder.metrics()} == {0, 1, 2}
    for task in range(3):
        losses = [line["valid_loss"] for line in folder.metrics() if line["task"] == task]
        assert losses[-1] >= min(losses[:-1])  # it ended because the loss did not fall


def test_settings_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    for override, says in (
        ("network.name=alexnet", r"AlexNet cannot take images of 8×8"),
        ("threshold.layers.nope=0.9", r"threshold\['nope'\] matches no layer.*hidden.1\.$"),
    ):
        with pytest.raises(RunError, match=says):
            run(plan("gpm", tmp_path, *FEW, override))


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    asked = plan("finetune", tmp_path)
    folder = asked.folder(0)
    folder.save_checkpoint(
        {
            "task": 1,
            "training": {"epoch": 0, "best": {}},
            "method": {"network": {"hidden.0.weight": torch.zeros(2, 2)}},
            "random": torch.get_rng_state(),
            "matrix": "after,0,1,2\n0,0.5,,\n",
            "seconds": {},
        }
    )
    with pytest.raises(RunError, match="does not fit this release's finetune"):
        run(asked)
    assert len(list(folder.path.glob("checkpoint-*"))) == 1


def test_devices_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, first, second = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
    assert pick_devices("cpu") == pick_devices("cpu:0") == pick_devices("cpu, cpu") == [cpu]
    for wrong in ("gpu", "meta", "", "cuda:x", "mps", "cpu,", "autocuda"):
        with pytest.raises(RunError, match="no such device"):
            pick_devices(wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_devices("auto") == [cpu]
    with pytest.raises(RunError, match="finds no CUDA device"):
        pick_devices("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_devices("auto") == pick_devices("cuda") == pick_devices("cuda:0, cuda:1,cuda:0") == [first, second]
    assert pick_devices("cuda:1") == [second]
    with pytest.raises(RunError, match="there are 2 CUDA devices"):
        pick_devices("cuda:0,cuda:2")
    with pytest.raises(RunError, match="use either the CPU or GPUs"):
        pick_devices("cpu,cuda:0")


def test_seeds_with_the_same_settings_are_resumed_together(tmp_path: Path) -> None:
    for seed, how in ((0, {"tf32": False}), (2, {"tf32": False}), (1, {"checkpoint_every": 3})):
        plan("finetune", tmp_path, **how).folder(seed)  # killed before it began
    RunFolder.create(tmp_path, plan("gpm", tmp_path).settings, 5)  # does not say how
    plans = {p.seeds: p for p in unfinished(tmp_path, "cpu", 1, deterministic=None)[0]}
    assert plans.keys() == {(0, 2), (1,), (5,)}
    assert (plans[0, 2].deterministic, plans[0, 2].tf32, plans[0, 2].checkpoint_every) == (True, False, 20)
    assert (plans[1,].deterministic, plans[1,].tf32, plans[1,].checkpoint_every) == (True, True, 3)
    assert (plans[5,].deterministic, plans[5,].tf32, plans[5,].checkpoint_every) == (False, True, 20)
    assert plans[0, 2].root == tmp_path.resolve()
    ((only,), _) = unfinished(tmp_path / "permuted-digits" / "gpm", "cpu", 1, deterministic=True, checkpoint_every=1)
    assert (only.deterministic, only.checkpoint_every, only.settings.method) == (True, 1, "gpm")
    with pytest.raises(RunError, match=r"There is no folder .*nowhere"):
        unfinished(tmp_path / "nowhere", "cpu", 1)


def test_a_run_that_diverges_says_so_once(tmp_path: Path) -> None:
    folder, heard = run(plan("finetune", tmp_path, "stream.tasks=2", "training.epochs=6", "training.batch=20", "lr=10"))
    notes = [each.note for each in heard if each.note]
    assert len(notes) == 1
    assert re.fullmatch(r"the loss has been (nan|inf) since epoch \d\. Try a lower learning rate, .*", notes[0])
    assert folder.finished
