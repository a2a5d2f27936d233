"""Accuracy on several tasks: right, in one pass, with one wait for the device."""

import sys
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from remnant.evaluation import evaluate


def split(count: int, seed: int = 0, classes: int = 3) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    return SimpleNamespace(
        x=torch.randn(count, 4, generator=generator), y=torch.randint(classes, (count,), generator=generator)
    )


def score(x: Tensor, task: int) -> Tensor:
    """Logits that differ by task."""
    return x.roll(task, dims=1)[:, :3]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Identity().eval()

    def forward(self, x: Tensor, task: int) -> Tensor:
        return score(self.drop(self.norm(x)), task)


class HostReads(TorchFunctionMode):
    """Counts the calls that make the host wait for a tensor's value, on any device."""

    NAMES = ("item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        # numpy() after cpu() does not wait again.
        if name in self.NAMES and not (name == "numpy" and self.reads["cpu"]):
            self.reads[name] += 1
        return func(*args, **(kwargs or {}))


# Right


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 45))
def test_is_the_plain_accuracy_and_loss_for_any_sizes(counts, batch_size):
    splits = [split(count, seed) for seed, count in enumerate(counts)]
    result = evaluate(score, splits, batch_size=batch_size, loss=F.cross_entropy)
    for task, s in enumerate(splits):
        logits = score(s.x, task)
        assert result.accuracy[task] == (logits.argmax(1) == s.y).double().mean()
        np.testing.assert_allclose(result.loss[task], F.cross_entropy(logits, s.y), rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 200))
def test_batches_are_counted_together_but_no_more_logits_kept_than_allowed(count, batch_size, at_once):
    asked = []

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        asked.append(logits.numel())
        return F.cross_entropy(logits, y)

    s = split(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["remnant.evaluation.evaluate"], "LOGITS_AT_ONCE", at_once)
        result = evaluate(score, [s], batch_size=batch_size, loss=loss)
    assert sum(asked) == 3 * count
    assert all(numbers >= at_once for numbers in asked[:-1])
    assert max(asked) < at_once + 3 * (batch_size + 1)  # a single last example joins the batch before
    assert result.accuracy[0] == (score(s.x, 0).argmax(1) == s.y).double().mean()
    np.testing.assert_allclose(result.loss[0], F.cross_entropy(score(s.x, 0), s.y), rtol=1e-5)


def test_gives_float64_fractions_and_no_loss_unless_asked():
    result = evaluate(score, [split(10), split(20, 1)])
    assert result.accuracy.dtype == np.float64
    assert result.accuracy.shape == (2,)
    assert result.loss is None


def test_some_tasks_by_number():
    splits = [split(30, seed) for seed in range(4)]
    everything = evaluate(score, splits).accuracy
    np.testing.assert_array_equal(evaluate(score, {3: splits[3], 1: splits[1]}).accuracy, everything[[3, 1]])


def test_splits_may_be_made_one_at_a_time():
    alive = []

    def lazily():
        for seed in range(3):
            alive.append(seed)
            yield split(10, seed)

    np.testing.assert_array_equal(
        evaluate(score, lazily()).accuracy, evaluate(score, [split(10, seed) for seed in range(3)]).accuracy
    )
    assert alive == [0, 1, 2]


def test_nan_logits_count_as_wrong():
    zeros = SimpleNamespace(x=torch.randn(8, 4), y=torch.zeros(8, dtype=torch.long))
    result = evaluate(lambda x, _: torch.full((len(x), 3), torch.nan), [zeros], loss=F.cross_entropy)
    assert result.accuracy[0] == 0
    assert np.isnan(result.loss[0])


# One pass, one wait


@pytest.mark.parametrize("loss", [None, F.cross_entropy])
@pytest.mark.parametrize("tasks", [1, 5])
def test_the_host_waits_once_for_a_set_of_tasks(tasks, loss):
    splits = [split(50, seed) for seed in range(tasks)]
    with HostReads() as host:
        evaluate(score, splits, batch_size=8, loss=loss)
    assert host.reads == {"cpu": 1}


def test_the_count_would_catch_a_wait_per_batch():
    with HostReads() as host:
        evaluate(lambda x, task: score(x, task) + x.sum().item(), [split(50)], batch_size=10)
    assert host.reads == {"cpu": 1, "item": 5}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_is_waited_for_once():
    splits = [split(50, seed) for seed in range(4)]
    expected = evaluate(score, splits, loss=F.cross_entropy)
    splits = [SimpleNamespace(x=s.x.cuda(), y=s.y.cuda()) for s in splits]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            result = evaluate(score, splits, batch_size=8, loss=F.cross_entropy)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in waits if "synchronizing" in str(w.message)]) == 1
    np.testing.assert_array_equal(result.accuracy, expected.accuracy)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-5)


def test_each_example_is_seen_once_and_without_gradients():
    seen = []

    def spy(x: Tensor, task: int) -> Tensor:
        assert not torch.is_grad_enabled()
        seen.append(x)
        return score(x, task)

    s = split(50)
    evaluate(spy, [s], batch_size=16, loss=F.cross_entropy)
    torch.testing.assert_close(torch.cat(seen), s.x, rtol=0, atol=0)
    assert torch.is_grad_enabled()


# Batches and modes


@pytest.mark.parametrize(("count", "batches"), [(128, [64, 64]), (130, [64, 64, 2]), (129, [64, 65]), (1, [1])])
def test_no_example_is_left_in_a_batch_alone(count, batches):
    sizes = []
    evaluate(lambda x, task: sizes.append(len(x)) or score(x, task), [split(count)])
    assert sizes == batches


def test_a_network_that_normalises_by_the_batch_can_be_scored_whatever_the_remainder():
    assert 0 <= evaluate(Classifier(), [split(65)]).accuracy[0] <= 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_is_evaluated_in_evaluation_mode_and_restored(fails):
    model = Classifier().train()
    model.frozen.eval()
    modes = []
    model.drop.register_forward_hook(lambda module, *_: modes.append(module.training))
    labels = split(20)
    if fails:
        labels.y = labels.y[:, None]
        with pytest.raises(ValueError, match="one label per input"):
            evaluate(model, [split(20), labels])
    else:
        first, again = (evaluate(model, [labels]).accuracy for _ in range(2))
        np.testing.assert_array_equal(first, again)
    assert set(modes) == {False}
    assert model.training
    assert model.drop.training
    assert not model.frozen.training


# Refused


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(ValueError, match="no examples were given"):
        evaluate(score, [])
    with pytest.raises(ValueError, match="Task 1 has no examples"):
        evaluate(score, [split(3), split(0)])


def test_labels_that_do_not_match_the_inputs_are_refused():
    s = split(10)
    with pytest.raises(ValueError, match=r"Task 0: y must hold one label per input, got x \(10, 4\) and y \(9,\)"):
        evaluate(score, [SimpleNamespace(x=s.x, y=s.y[:9])])


def test_logits_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"10 inputs gave logits of shape \(10,\)"):
        evaluate(lambda x, _: x[:, 0], [split(10)])


def test_a_batch_size_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batch_size must be positive"):
        evaluate(score, [split(3)], batch_size=0)
