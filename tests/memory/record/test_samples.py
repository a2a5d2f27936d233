"""Samples are drawn evenly from the stream, by seed, for the whole model or for one layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small_net import Net, data
from torch import nn

from remnant import GPM
from remnant.memory.record.batches import sample

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def test_samples_are_seeded_and_do_not_depend_on_batching() -> None:
    x = torch.arange(100.0).unsqueeze(1)

    def drawn(size: int, seed: int = 3) -> list[float]:
        return torch.cat(
            [batch[0] for batch in sample(zip(x.split(size), x.split(size), strict=True), 12, seed)]
        ).tolist()

    assert drawn(1) == drawn(7) == drawn(100) == drawn(7)
    assert len({value for (value,) in drawn(7)}) == 12
    assert drawn(7, seed=4) != drawn(7)


def test_samples_are_drawn_evenly_from_the_whole_stream() -> None:
    counts: Counter[int] = Counter()
    for seed in range(400):
        for batch in sample(torch.arange(20).split(6), 5, seed):
            counts.update(batch.tolist())
    assert sum(counts.values()) == 400 * 5
    assert min(counts[i] for i in range(20)) > 65  # 100 expected, σ about 9
    assert max(counts.values()) < 135


def test_samples_keep_inputs_and_labels_together_and_the_streams_batch_size() -> None:
    x = torch.arange(30)
    batches = [{"ids": part, "pair": (part * 2, part * 3), "note": "same"} for part in x.split(4)]
    drawn = list(sample(batches, 10, 0))
    assert [len(batch["ids"]) for batch in drawn] == [4, 4, 2]
    for batch in drawn:
        assert torch.equal(batch["pair"][0], batch["ids"] * 2)
        assert torch.equal(batch["pair"][1], batch["ids"] * 3)
        assert batch["note"] == "same"


def test_samples_of_batches_padded_to_their_own_length() -> None:
    batches = [torch.zeros(6, length, dtype=torch.long) for length in (3, 5, 4)]
    drawn = list(sample(batches, 15, 0))
    assert sum(len(batch) for batch in drawn) == 15
    assert {batch.shape[1] for batch in drawn} == {3, 4, 5}


def test_more_samples_than_there_are_is_all_of_them_and_none_is_none() -> None:
    x = torch.randn(10, 2)
    assert torch.equal(torch.cat(list(sample(x.split(3), 50, 0))), x)
    assert list(sample(x.split(3), 0, 0)) == []


def test_layer_samples_limit_the_examples_of_a_layer(net: Net) -> None:
    x = torch.randn(20, 8)
    memory = GPM(net, 0.999)
    added = memory.consolidate([x], layer_samples={"hidden": 2})
    assert added["hidden"] == 2
    assert added["out"] > 2
    with pytest.raises(ValueError, match=r"layer_samples\['hiden'\] matches no layer. Did you mean 'hidden'\?"):
        memory.consolidate([x], layer_samples={"hiden": 2})
    with pytest.raises(ValueError, match=r"layer_samples\['out'\] is 0: it must be a positive whole number"):
        memory.consolidate([x], layer_samples={"out": 0})
    with pytest.raises(ValueError, match="samples is True: it must be a positive whole number"):
        memory.consolidate([x], samples=True)
    assert len(memory) == 1


def test_samples_limit_what_is_remembered(net: Net) -> None:
    x = torch.randn(50, 8)
    few, again, all_of_it = (GPM(net, threshold=1.0 - 1e-9) for _ in range(3))
    assert few.consolidate([x], samples=3)["out"] == 3
    again.consolidate(list(x.split(7)), samples=3)
    assert few.subspaces["out"].rank == again.subspaces["out"].rank
    torch.testing.assert_close(few.subspaces["out"].remove(again.subspaces["out"].basis.mT).norm(), torch.tensor(0.0))
    with pytest.warns(UserWarning, match="These layers are full"):
        assert all_of_it.consolidate(x, samples=1000)["out"] > 3


@pytest.mark.parametrize("samples", [0, -1, 2.5, "all"])
def test_samples_must_be_a_positive_whole_number(memory: GPM, samples: Any) -> None:
    with pytest.raises(ValueError, match="positive whole number"):
        memory.consolidate(data(), samples=samples)


def test_samples_need_tensors_to_draw_from(memory: GPM) -> None:
    with pytest.raises(TypeError, match="samples= needs batches of tensors"):
        memory.consolidate(["text"], samples=3)


def test_a_tensor_without_dimensions_belongs_to_every_batch() -> None:
    batches = [{"x": part, "scale": torch.tensor(2.0)} for part in torch.arange(20.0).split(6)]
    drawn = list(sample(batches, 9, 0))
    assert [batch["x"].shape for batch in drawn] == [(6,), (3,)]
    assert all(batch["scale"].shape == () for batch in drawn)
    model = nn.Linear(8, 3)
    memory = GPM(model, threshold=0.9)
    calls = {"x": data(), "scale": torch.tensor(2.0)}
    memory.consolidate([calls], samples=5, layer_samples={"model": 4}, forward=lambda m, b: m(b["x"] * b["scale"]))
    assert len(memory) == 1


def test_samples_of_a_dataclass_of_tensors() -> None:
    @dataclass
    class Pair:
        x: torch.Tensor
        y: torch.Tensor

    drawn = list(sample([Pair(part, part + 1) for part in torch.arange(20).split(6)], 9, 0))
    assert all(torch.equal(batch.x + 1, batch.y) for batch in drawn)
    assert sum(len(batch.x) for batch in drawn) == 9


def test_batches_that_do_not_have_their_examples_first_are_refused_in_words(memory: GPM) -> None:
    batch = {"x": torch.randn(5, 3, 8), "y": torch.zeros(3)}  # steps first, as many recurrent networks want
    with pytest.raises(TypeError, match=r"\[3, 5\] entries there.*Put the examples first.*leave samples= out"):
        memory.consolidate([batch], samples=2, forward=lambda m, b: m(b["x"].flatten(0, 1)))
    memory.consolidate([batch], forward=lambda m, b: m(b["x"].flatten(0, 1)))
