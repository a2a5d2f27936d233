"""A saved memory comes back bit for bit, training continues from it, and a failed save leaves the old file complete."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import frozen_copy, same
from safetensors.torch import load_file, save_file
from small_net import Net, adamw, data, train
from torch import Tensor, nn

from remnant import GPM, StateError, files

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def test_a_saved_memory_is_the_memory_bit_for_bit(memory: GPM, net: Net, tmp_path: Path) -> None:
    train(net, memory.attach(adamw(net)), data())
    memory.consolidate(data())
    memory.save(tmp_path / "memory.safetensors")
    loaded = GPM.load(tmp_path / "memory.safetensors", copy.deepcopy(net))
    assert same(loaded.state_dict(), memory.state_dict())
    assert loaded.report() == memory.report()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.safetensors"]


def test_a_memory_is_loaded_within_autocast(memory: GPM, net: Net, tmp_path: Path) -> None:
    train(net, memory.attach(adamw(net)), data())
    memory.consolidate(data())
    memory.save(tmp_path / "memory")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loaded = GPM.load(tmp_path / "memory", copy.deepcopy(net))
    assert same(loaded.state_dict(), memory.state_dict())


def test_a_memory_of_no_task_can_be_saved(net: Net, tmp_path: Path) -> None:
    GPM(net).save(tmp_path / "empty")
    assert len(GPM.load(str(tmp_path / "empty"), net)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make", [adamw, lambda model: torch.optim.SGD(model.parameters(), lr=0.05)], ids=["adamw", "sgd"]
)
def test_training_continues_from_a_file_as_if_never_interrupted(
    make: Callable[[nn.Module], torch.optim.Optimizer], dtype: torch.dtype, tmp_path: Path
) -> None:
    tasks = [data().to(dtype) for _ in range(3)]

    def continued(stop: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        torch.manual_seed(1)
        model = Net().to(dtype)
        memory = GPM(model, threshold={"start": 0.9, "step": 0.01})
        optimizer = memory.attach(make(model))
        for task, x in enumerate(tasks):
            train(model, optimizer, x, steps=5)
            if stop and task == 1:  # in the middle of a task
                memory.save(tmp_path / "memory")
                save_file(model.state_dict(), tmp_path / "model")
                state = optimizer.state_dict()
                model = Net().to(dtype)
                model.load_state_dict(load_file(tmp_path / "model"))
                memory = GPM.load(tmp_path / "memory", model)
                optimizer = memory.attach(make(model))
                optimizer.load_state_dict(state)
            train(model, optimizer, x, steps=5)
            memory.consolidate(x, samples=15)
        return dict(model.state_dict()), memory.state_dict()

    for interrupted, uninterrupted in zip(continued(stop=True), continued(stop=False), strict=True):
        assert same(interrupted, uninterrupted)


def test_a_threshold_function_must_be_given_again(net: Net, tmp_path: Path) -> None:
    def mine(layer: str, task: int) -> float:
        return 0.9

    GPM(net, threshold=mine).save(tmp_path / "memory")
    with pytest.raises(StateError, match="Pass it again"):
        GPM.load(tmp_path / "memory", net)
    GPM.load(tmp_path / "memory", net, threshold=mine).consolidate(data())


@pytest.mark.parametrize("threshold", [0.9, {"hidden": 0.5, "*": 0.9}, {"start": 0.9, "step": 0.01}], ids=str)
def test_other_thresholds_come_back_by_themselves(net: Net, tmp_path: Path, threshold: Any) -> None:
    before = GPM(net, threshold=threshold)
    before.save(tmp_path / "memory")
    after = GPM.load(tmp_path / "memory", net)
    assert after._settings == before._settings
    x = torch.randn(40, 8)
    assert after.consolidate(x) == before.consolidate(x)
    assert GPM.load(tmp_path / "memory", net, threshold=0.5)._settings["threshold"] == 0.5


def test_saving_where_one_cannot_is_an_os_error(memory: GPM, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        memory.save(tmp_path / "no such folder" / "memory")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):  # noqa: PT011
        memory.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not list((tmp_path / "folder").iterdir())
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "folder").chmod(0o500)
        with pytest.raises(PermissionError):
            memory.save(tmp_path / "folder" / "memory")
        assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("stage", ["write", "fsync", "replace"])
def test_killed_while_saving_the_old_file_is_whole(
    memory: GPM, net: Net, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    old = path.read_bytes()
    memory.consolidate(data())

    def killed(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, stage, killed)
    with pytest.raises(KeyboardInterrupt):
        memory.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory"]
    assert len(GPM.load(path, net)) == 1


def test_saving_removes_what_killed_saves_of_the_same_file_have_left(memory: GPM, tmp_path: Path) -> None:
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    others = [f".other.{ended}.tmp", f".memory.{os.getppid()}.tmp", ".memory.draft.tmp"]
    for name in (*others, f".memory.{ended}.tmp"):
        (tmp_path / name).touch()
    memory.save(tmp_path / "memory")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "memory"])


def test_a_loaded_memory_outlives_its_file(memory: GPM, net: Net, tmp_path: Path) -> None:
    """The tensors must not be a map of the file: overwriting it would change, or kill, a running process."""
    path = tmp_path / "memory"
    memory.save(path)
    expected = frozen_copy(memory.state_dict())
    loaded = GPM.load(path, net)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert same(loaded.state_dict(), expected)


def test_a_state_dict_can_be_taken_over_and_does_not_follow_the_memory(memory: GPM, net: Net) -> None:
    state = memory.state_dict()
    kept = frozen_copy(state)
    train(net, memory.attach(adamw(net)), data())
    memory.consolidate(data())
    assert same(state, kept)
    memory.load_state_dict(state)
    assert same(memory.state_dict(), kept)


def test_a_place_that_cannot_be_written_is_named_as_the_caller_wrote_it(memory: GPM, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"memory\.st cannot be written: there is no folder .*/nowhere\. Make"):
        memory.save(tmp_path / "nowhere" / "memory.st")
    with pytest.raises(IsADirectoryError, match=r"is a folder\. Name the file"):
        memory.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_layer_that_was_frozen_since_is_still_protected_when_loaded(memory: GPM, net: Net, tmp_path: Path) -> None:
    memory.save(tmp_path / "memory")
    other = copy.deepcopy(net)
    other.hidden.requires_grad_(False)
    loaded = GPM.load(tmp_path / "memory", other)
    assert same(loaded.state_dict(), memory.state_dict())
    assert not any(p.requires_grad for p in other.hidden.parameters())


def test_saving_through_a_link_replaces_the_file_and_keeps_the_link(memory: GPM, net: Net, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "memory")
    for _ in range(2):
        memory.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["memory"]
    assert len(GPM.load(tmp_path / "link", net)) == 1


def test_a_device_or_a_pipe_is_left_alone(memory: GPM, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device or a pipe"):
        memory.save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
