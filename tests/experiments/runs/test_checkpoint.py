"""Checkpoints: the newest two are kept, and a damaged one gives way to the one before it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from remnant.experiments.runs import RunFolder
from remnant.memory.saving.codec import pack

HEADER = {"benchmark": "permuted-digits", "method": "gpm", "digest": "0123abcd", "seed": 0, "settings": {}}


def test_the_newest_two_are_kept_under_rising_numbers(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, HEADER)
    assert run.load_checkpoint() == (None, None)
    for n in range(12):
        run.save_checkpoint({"n": n})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-000011.safetensors", "checkpoint-000012.safetensors"]
    assert RunFolder(tmp_path, HEADER).load_checkpoint() == ({"n": 11}, None)
    run.clear_checkpoints()
    assert list(tmp_path.iterdir()) == []


def test_numbers_rise_past_six_digits(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, HEADER)
    (tmp_path / "checkpoint-999999.safetensors").write_bytes(b"".join(pack({"n": 0})))
    run.save_checkpoint({"n": 1})
    run.save_checkpoint({"n": 2})
    assert run.load_checkpoint() == ({"n": 2}, None)


Damage = Callable[[Path], object]


def cut(share: float) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def flip(share: float) -> Damage:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(share * len(data))] ^= 0x10
        path.write_bytes(data)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(cut(share), id=f"cut at {share}") for share in (0, 0.001, 0.05, 0.3, 0.9, 0.9999)),
        *(pytest.param(flip(share), id=f"flipped at {share}") for share in (0, 0.02, 0.1, 0.5, 0.9999)),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"x"), id="longer"),
        pytest.param(lambda path: path.write_bytes(bytes(path.stat().st_size)), id="zeros"),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(damage: Damage, tmp_path: Path) -> None:
    run = RunFolder(tmp_path, HEADER)
    for n in (1, 2):
        run.save_checkpoint({"n": n, "w": torch.full((500,), float(n))})
    damage(tmp_path / "checkpoint-000002.safetensors")
    state, sentence = run.load_checkpoint()
    assert state is not None
    assert state["n"] == 1
    assert sentence is not None
    assert "checkpoint-000002.safetensors is damaged" in sentence
    assert "the previous one, checkpoint-000001" in sentence

    run.save_checkpoint({"n": 3})  # the damaged one does not count as one of two
    assert [path.name[11:17] for path in sorted(tmp_path.iterdir(), reverse=True)] == ["000003", "000001"]
    damage(tmp_path / "checkpoint-000003.safetensors")
    again, _ = RunFolder(tmp_path, HEADER).load_checkpoint()
    assert again is not None
    assert again["n"] == 1


def test_a_deleted_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, HEADER)
    run.save_checkpoint({"n": 1})
    run.save_checkpoint({"n": 2})
    (tmp_path / "checkpoint-000002.safetensors").unlink()
    assert run.load_checkpoint() == ({"n": 1}, None)


def test_without_a_complete_checkpoint_the_run_starts_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, HEADER)
    run.save_checkpoint({"n": 1})
    cut(0.5)(tmp_path / "checkpoint-000001.safetensors")
    state, sentence = run.load_checkpoint()
    assert state is None
    assert sentence is not None
    assert "starts again" in sentence


def test_another_version_of_the_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.saving.codec.VERSION", 2)
    RunFolder(tmp_path, HEADER).save_checkpoint({"n": 1})
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="has version 2 of the format; this release reads version 1"):
        RunFolder(tmp_path, HEADER).load_checkpoint()
