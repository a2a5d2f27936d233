"""A state that is cut short, foreign, damaged, newer or of another model is refused, and changes nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import frozen_copy, same
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_net import Net, data
from torch import nn

from remnant import GPM, StateError
from remnant.files import write_file
from remnant.memory import codec

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


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
    with pytest.raises(StateError, match="content has changed since it was written"):
        GPM.load(path, net)


def test_a_file_without_a_checksum_is_refused(memory: GPM, net: Net, tmp_path: Path) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    with safe_open(path, framework="pt") as file:
        words = {key: text for key, text in file.metadata().items() if key != codec.CHECKSUM}
    save_file(load_file(path), path, words)
    with pytest.raises(StateError, match="checksum"):
        GPM.load(path, net)


def test_a_foreign_file_is_refused(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file(net.state_dict(), path)
    with pytest.raises(StateError, match=r"not .*GPM\.save\(\) wrote: it is a safetensors file from another program"):
        GPM.load(path, net)
    path.write_text("threshold = 0.97\n")
    with pytest.raises(StateError, match="not a safetensors file"):
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


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the state in a file, and its checksum with it."""
    state = codec.read(path)
    change(state)
    write_file(path, *codec.pack(state))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(version=99), "version 99.*reads version 2"),
        (lambda state: state.pop("version"), "damaged"),
        (lambda state: state.pop("settings"), r"not written by GPM\.save"),
        (lambda state: state.update(settings=[1]), r"not written by GPM\.save"),
        (lambda state: state.pop("layers"), "damaged"),
        (lambda state: state.update(tasks="many"), "damaged"),
        (lambda state: state["settings"].update(colour="red"), "does not fit"),
        (lambda state: state["settings"].pop("threshold"), r"not written by GPM\.save"),
        (lambda state: state["settings"].update(threshold={"odd": 1}), "does not fit"),
        (lambda state: state["layers"]["out"].pop("added"), "damaged"),
        (lambda state: state["layers"].pop("out"), "another model.*out"),
        (lambda state: state["layers"]["out"]["subspaces"][0].clear(), "damaged"),
        (lambda state: state["layers"]["out"]["subspaces"][0].update(basis=torch.zeros(5, 2)), "damaged"),
        (lambda state: state["layers"]["out"]["subspaces"].append({}), "damaged"),
        (lambda state: state["anchors"].pop("out.weight"), "out.weight"),
        (lambda state: state["anchors"].update({"out.weight": torch.zeros(2, 2)}), "out.weight"),
        (lambda state: state["anchors"].update({"out.weight": "odd"}), "damaged"),
        (lambda state: state["anchors"].update(odd=torch.zeros(1)), "another model.*odd"),
        (lambda state: state["buffers"].pop("norm.running_mean"), "norm.running_mean"),
        (lambda state: state["buffers"].update({"norm.running_mean": torch.zeros(9)}), "norm.running_mean"),
        (lambda state: state.pop("kept_in_eval"), "damaged"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(
    memory: GPM, net: Net, tmp_path: Path, change: Callable[..., None], message: str
) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    rewritten(path, change)
    with pytest.raises(StateError, match=message):
        GPM.load(path, net)


@pytest.mark.parametrize("words", ["{not json", "[1]"])
def test_a_file_with_a_broken_header_is_refused(net: Net, tmp_path: Path, words: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "memory", {codec.STATE: words})
    with pytest.raises(StateError, match="checksum"):
        GPM.load(tmp_path / "memory", net)


def test_a_newer_format_and_a_state_of_something_else_are_refused(
    memory: GPM, net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory"
    write_file(path, *codec.pack({"step": 3}))
    with pytest.raises(StateError, match="does not hold a memory"):
        GPM.load(path, net)
    monkeypatch.setattr(codec, "VERSION", 7)
    memory.save(path)
    monkeypatch.undo()
    with pytest.raises(
        StateError,
        match=r"Another release of Remnant wrote .* version 7 of the format; .*Load it with the other release",
    ):
        GPM.load(path, net)


def test_the_state_of_another_model_is_refused_and_changes_nothing(memory: GPM, tmp_path: Path) -> None:
    memory.save(tmp_path / "memory")
    with pytest.raises(StateError, match=r"another model.*conv"):
        GPM.load(tmp_path / "memory", nn.Linear(8, 3))
    wider = Net()
    wider.out = nn.Linear(12, 5)
    with pytest.raises(StateError, match=r"another model.*'out\.(weight|bias)'"):
        GPM.load(tmp_path / "memory", wider)
    wider.hidden = nn.Linear(40, 12)
    with pytest.raises(StateError, match=r"another model.*'hidden': \[33\] in the state, \[41\] here"):
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
