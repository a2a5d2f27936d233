"""What replay methods keep: a uniform reservoir, so many examples of each task, and the loss of tasks mixed in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from remnant.data import Split
from remnant.methods.parts.gradients import flat, unflat
from remnant.methods.parts.replay import NO_LABEL, Episodes, MixedLoss
from remnant.methods.parts.reservoir import Reservoir
from remnant.models import build


def numbered(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Examples that show their number, and it again as their label."""
    number = torch.arange(first, first + count)
    return number[:, None].float().repeat(1, 2), number


# --- the reservoir ----------------------------------------------------------------------------------------------------


def filled(size: int, offered: int, batch: int) -> Reservoir:
    reservoir = Reservoir(size, torch.zeros(2))
    for first in range(0, offered, batch):
        reservoir.offer(*numbered(first, min(batch, offered - first)))
    return reservoir


class SlowReservoir:
    """One example at a time, with the numbers the fast one would draw."""

    def __init__(self, size: int) -> None:
        self.size, self.kept, self.offered = size, [NO_LABEL] * size, 0

    def offer(self, labels: Tensor) -> None:
        chances = torch.rand(len(labels), dtype=torch.float64)
        for label, chance in zip(labels.tolist(), chances.tolist(), strict=True):
            self.offered += 1
            place = self.offered - 1 if self.offered <= self.size else int(chance * self.offered)
            if place < self.size:
                self.kept[place] = label


@given(st.integers(1, 12), st.lists(st.integers(1, 15), min_size=1, max_size=12), st.integers(0, 99))
def test_a_batch_offered_at_once_is_as_one_by_one(size: int, batches: list[int], seed: int) -> None:
    """Even if a batch is larger than the memory, or two of its examples take the same row: the later one stays."""
    fast, slow, first = Reservoir(size, torch.zeros(2)), SlowReservoir(size), 0
    for number, count in enumerate(batches):
        x, labels = numbered(first, count)
        torch.manual_seed(seed + number)
        fast.offer(x, labels)
        torch.manual_seed(seed + number)
        slow.offer(labels)
        first += count
    assert fast.labels[:size].tolist() == slow.kept
    kept = fast.labels[:size] != NO_LABEL
    assert torch.equal(
        fast.x[:size, 0][kept], fast.labels[:size][kept].float()
    )  # an example and its label stay together
    assert int(fast.offered) == first


@given(st.integers(1, 12), st.integers(0, 40), st.integers(1, 60))
def test_no_row_is_written_twice_in_a_batch(size: int, offered: int, batch: int) -> None:
    """A GPU would write two in any order, and could leave an example with another's label."""
    reservoir = Reservoir(size, torch.zeros(2))
    reservoir.offered += offered
    rows = reservoir.rows_for(batch)
    assert int(rows.min()) >= 0
    assert int(rows.max()) <= size
    kept = rows[rows < size]
    assert len(kept.unique()) == len(kept)


@pytest.mark.parametrize(("size", "offered", "batch"), [(20, 100, 10), (7, 50, 50), (30, 61, 8)])
def test_every_example_ever_offered_is_kept_with_the_same_probability(size: int, offered: int, batch: int) -> None:
    trials = 600
    counts = torch.zeros(offered)
    for _ in range(trials):
        counts += torch.bincount(filled(size, offered, batch).labels[:size], minlength=offered)
    assert counts.sum() == trials * size
    # Kept or not, for each example: the squared deviations, each over its variance, with one sum fixed.
    p = size / offered
    chi_square = ((counts - trials * p) ** 2 / (trials * p * (1 - p))).sum() * (offered - 1) / offered
    assert 1e-3 < stats.chi2.sf(float(chi_square), offered - 1) < 1 - 1e-3


def test_a_draw_is_uniform_over_what_is_kept() -> None:
    half_full = filled(20, 10, 5)
    _, labels = half_full.draw(20_000)
    counts = torch.bincount(labels, minlength=10)
    assert len(counts) == 10
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    x, labels = filled(20, 100, 10).draw(500)
    assert torch.equal(x[:, 0], labels.float())


def test_an_empty_reservoir_gives_rows_without_a_label() -> None:
    x, labels = Reservoir(5, torch.zeros(2)).draw(3)
    assert x.shape == (3, 2)
    assert labels.tolist() == [NO_LABEL] * 3


def test_a_reservoir_counts_the_bytes_it_keeps_and_not_the_row_it_drops_into() -> None:
    assert Reservoir(1000, torch.zeros(784)).nbytes == 1000 * (784 * 4 + 8)


# --- so many of each task ---------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([1, 2, 6, 9]))
def test_tasks_share_a_memory_evenly(size: int, tasks: list[int], told: int) -> None:
    """All there will be, as far as one was told, or all there are."""
    episodes = Episodes(size, torch.zeros(2))
    episodes.tasks = told
    for task, count in enumerate(tasks):
        x, _ = numbered(100 * task, count)
        episodes.add(Split.of(x, torch.zeros(count)), torch.full((count,), task))
        parts = max(told, task + 1)
        share = [size // parts + (t < size % parts) for t in range(task + 1)]
        assert episodes.counts == [min(c, s) for c, s in zip(tasks, share, strict=False)]
        assert len(episodes) == sum(episodes.counts) <= size
        assert episodes.nbytes == len(episodes) * (2 * 4 + 8)
        assert episodes.labels.tolist() == [t for t, kept in enumerate(episodes.counts) for _ in range(kept)]
        assert torch.equal((episodes.x[:, 0] / 100).long(), episodes.labels)
        assert len(episodes.x[:, 0].unique()) == len(episodes)  # no example twice


def test_what_is_kept_of_a_task_is_random_also_when_others_take_their_share() -> None:
    counts = torch.zeros(10)
    for _ in range(800):
        episodes = Episodes(6, torch.zeros(2))
        for task in range(3):
            x, _ = numbered(10 * task, 10)
            episodes.add(Split.of(x, torch.zeros(10)), torch.zeros(10, dtype=torch.int64))
        counts += torch.bincount(episodes.x[:2, 0].long(), minlength=10)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_a_draw_is_of_all_tasks_or_simply_all_there_is() -> None:
    episodes = Episodes(9, torch.zeros(2))
    for task in range(3):
        episodes.add(Split.of(numbered(10 * task, 10)[0], torch.zeros(10)), torch.full((10,), task))
    x, labels = episodes.draw(9)
    assert torch.equal(x, episodes.x)
    assert torch.equal(labels, episodes.labels)
    x, labels = episodes.draw(4)
    assert len(x) == len(labels) == 4
    torch.manual_seed(1)
    counts = sum(torch.bincount(episodes.draw(8)[1], minlength=3) for _ in range(500))
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3  # type: ignore[union-attr]


def test_batches_by_task_are_of_one_size_and_repeats_have_no_label() -> None:
    episodes = Episodes(9, torch.zeros(2))
    for task, count in enumerate((5, 2, 5)):
        episodes.add(Split.of(numbered(10 * task, count)[0], torch.zeros(count)), torch.full((count,), task))
    x, labels = episodes.by_task()
    assert x.shape == (3, 3, 2)
    assert labels.tolist() == [[0, 0, 0], [1, 1, NO_LABEL], [2, 2, 2]]
    assert torch.equal(x[1, 2], x[1, 0])


def test_a_memory_smaller_than_the_number_of_tasks_forgets_the_last_ones() -> None:
    episodes = Episodes(2, torch.zeros(2))
    for task in range(4):
        episodes.add(Split.of(*numbered(10 * task, 5)), torch.full((5,), task))
    assert episodes.counts == [1, 1, 0, 0]
    assert [t.tolist() for t in episodes.by_task()[1]] == [[0], [1]]


# --- tasks mixed in a batch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [4, (2, 3, 4)], ids=["one head", "heads"])
def test_the_mixed_loss_is_each_examples_loss_under_its_own_head(classes: int | Sequence[int], bias: bool) -> None:
    net = build("mlp", input_shape=(6,), classes=classes, seed=1, hidden=(5,), bias=bias).double()
    loss = MixedLoss(net)
    sizes = (2, 3, 4) if net.multi_head else (4, 4, 4)
    x, tasks = torch.randn(24, 6, dtype=torch.float64), torch.arange(24) % 3
    own = torch.tensor([int(torch.randint(0, sizes[t], ())) for t in tasks])
    labels = torch.tensor([int(loss.labels(y, int(t))) for y, t in zip(own, tasks, strict=True)])
    each = [F.cross_entropy(net(x[i : i + 1], int(tasks[i])), own[i : i + 1]) for i in range(24)]
    parameters = list(net.parameters())
    for rows in (slice(0, 24), slice(3, 10)):
        mixed = loss(x[rows], labels[rows], 3)
        expected = torch.stack(each[rows]).mean()
        assert mixed.item() == pytest.approx(expected.item(), rel=1e-12)
        found, wanted = (torch.autograd.grad(one, parameters, retain_graph=True) for one in (mixed, expected))
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-14) for a, b in zip(found, wanted, strict=True))
    some = labels.clone()
    some[::2] = NO_LABEL
    assert loss(x, some, 3).item() == pytest.approx(torch.stack(each[1::2]).mean().item(), rel=1e-12)


def test_flat_and_unflat_undo_each_other() -> None:
    tensors: list[Any] = [torch.randn(2, 3).T, torch.randn(4), torch.randn(1, 2, 2)]
    vector = flat(tensors)
    assert vector.shape == (14,)
    assert all(torch.equal(a, b) for a, b in unflat(vector, tensors).items())
    stacked = flat([torch.stack([t, 2 * t]) for t in tensors], batch=1)
    assert torch.equal(stacked, torch.stack([vector, 2 * vector]))
