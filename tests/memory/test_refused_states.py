"""A state that is cut short, foreign, damaged, newer or another model's is refused, and changes nothing."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import frozen_copy, same
from safetensors.torch import save_file
from small_net import Net, data
from torch import Tensor, nn

from remnant import GPM, StateError
from remnant.memory import storage

pytestmark = pytest.mark.filterwarnings("ignore:Full, and from now on fixed")


@pytest.mark.parametrize("cut", [0.0, 0.0005, 0.01, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_refused(memory: GPM, net: Net, tmp_path: Path, cut: float) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(StateError, match="cut short"):
        GPM.load(path, net)


@pytest.mark.parametrize("place", [0.5, 0.9, 1.0], ids=["middle", "late", "last byte"])
def test_a_single_flipped_bit_is_noticed(memory: GPM, net: Net, tmp_path: Path, place: float) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    content = bytearray(path.read_bytes())
    tensors = 8 + int.from_bytes(content[:8], "little")  # behind the header
    content[tensors + int((len(content) - 1 - tensors) * place)] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateError, match="damaged: it is not what was written"):
        GPM.load(path, net)


def test_a_file_from_before_there_were_checksums_is_read(memory: GPM, net: Net, tmp_path: Path) -> None:
    memory.save(tmp_path / "memory")
    rewritten(tmp_path / "memory", lambda header, tensors: None)
    assert GPM.load(tmp_path / "memory", net).tasks == memory.tasks


def test_a_foreign_file_is_refused(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file(net.state_dict(), path)
    with pytest.raises(StateError, match=r"not written by GPM\.save"):
        GPM.load(path, net)
    path.write_text("threshold = 0.97\n")
    with pytest.raises(StateError, match="not a whole safetensors file"):
        GPM.load(path, net)
    with pytest.raises(FileNotFoundError):
        GPM.load(tmp_path / "missing", net)
    with pytest.raises(OSError):  # noqa: PT011
        GPM.load(tmp_path, net)


def test_a_pickle_is_refused_and_never_run(net: Net, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "memory"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(StateError):
        GPM.load(path, net)
    torch.save({"memory": Trap()}, path)
    with pytest.raises(StateError):
        GPM.load(path, net)
    assert not (tmp_path / "sprung").exists()


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> None:
    """The file with its header or its tensors changed."""
    header, tensors = storage.read(path)
    change(header, tensors)
    save_file(tensors, path, {storage.KEY: json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, _: header.update(version=99), "version 99.*reads version 1"),
        (lambda header, _: header.pop("version"), "version None"),
        (lambda header, _: header.pop("settings"), "damaged"),
        (lambda header, _: header.pop("layers"), "damaged"),
        (lambda header, _: header.update(tasks="many"), "damaged"),
        (lambda header, _: header["settings"].update(colour="red"), "does not fit"),
        (lambda header, _: header["settings"].update(threshold={"odd": 1}), "damaged"),
        (lambda header, _: header["layers"]["out"].pop("added"), "damaged"),
        (lambda header, _: header["layers"].pop("out"), "damaged"),
        (lambda _, tensors: tensors.pop("layers/out/0/basis"), "damaged"),
        (lambda _, tensors: tensors.pop("anchors/out.weight"), "out.weight"),
        (lambda _, tensors: tensors.update({"anchors/out.weight": torch.zeros(2, 2)}), "out.weight"),
        (lambda _, tensors: tensors.update({"layers/out/0/basis": torch.zeros(5, 2)}), "damaged"),
        (lambda _, tensors: tensors.update({"odd": torch.zeros(1)}), "damaged"),
        (lambda _, tensors: tensors.pop("statistics/norm.running_mean"), "norm.running_mean"),
        (lambda _, tensors: tensors.update({"statistics/norm.running_mean": torch.zeros(9)}), "norm.running_mean"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_or_newer_file_is_refused(
    memory: GPM, net: Net, tmp_path: Path, change: Callable[..., None], message: str
) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    rewritten(path, change)
    with pytest.raises(StateError, match=message):
        GPM.load(path, net)


def test_a_file_with_a_broken_header_is_refused(net: Net, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "memory", {storage.KEY: "{not json"})
    with pytest.raises(StateError, match="damaged"):
        GPM.load(tmp_path / "memory", net)
    save_file({"a": torch.zeros(1)}, tmp_path / "memory", {storage.KEY: "[1]"})
    with pytest.raises(StateError, match="damaged"):
        GPM.load(tmp_path / "memory", net)


def test_the_state_of_another_model_is_refused_and_changes_nothing(memory: GPM, tmp_path: Path) -> None:
    memory.save(tmp_path / "memory")
    with pytest.raises(StateError, match=r"another model.*conv"):
        GPM.load(tmp_path / "memory", nn.Linear(8, 3))
    wider = Net()
    wider.out = nn.Linear(12, 5)
    with pytest.raises(StateError, match=r"another model.*'out\.(weight|bias)'"):
        GPM.load(tmp_path / "memory", wider)
    wider.hidden = nn.Linear(40, 12)
    with pytest.raises(StateError, match=r"another model.*hidden has \[33\] inputs there and \[41\] here"):
        GPM.load(tmp_path / "memory", wider)

    other = GPM(nn.Sequential(nn.Linear(8, 4)))
    other.consolidate(data())
    before = frozen_copy(other.state_dict())
    for foreign in (memory.state_dict(), {}, {"version": 1}, {"version": 7}):
        with pytest.raises(StateError):
            other.load_state_dict(foreign)
        assert same(other.state_dict(), before)


def test_a_file_whose_patterns_mean_nothing_in_this_model_says_so(tmp_path: Path, net: Net) -> None:
    GPM(net, exclude=["out"]).save(tmp_path / "memory")
    with pytest.raises(StateError, match=r"does not fit this model.*'out'"):
        GPM.load(tmp_path / "memory", nn.Sequential(nn.Linear(8, 3)))


def test_a_state_that_holds_less_than_this_memory_is_refused(net: Net) -> None:
    loose = GPM(net, norm="free")
    loose.consolidate(data())
    with pytest.raises(StateError, match=r"norm\.weight.*settings"):
        GPM(net, norm="freeze").load_state_dict(loose.state_dict())
