"""With keep_examples=False nothing of a task's data stays in the process, and `verify` checks what it still can."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch
from small_net import Net, adamw, data, train
from torch import Tensor

from remnant import GPM, LeakError

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def alive() -> dict[int, Tensor]:
    """All tensors of the process, by identity."""
    gc.collect()
    return {id(x): x for x in gc.get_objects() if issubclass(type(x), Tensor)}


def consolidated(memory: GPM, net: Net) -> set[float]:
    """The numbers in a task's inputs and in the model's outputs for them."""
    x = data()
    memory.consolidate([x[:12], x[12:]])
    with torch.no_grad():
        outputs = net.eval()(x)
    return {*x.flatten().tolist(), *outputs.flatten().tolist()}


@pytest.mark.parametrize("recall", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_examples_stay_in_the_process_only_if_they_are_kept(keep: bool, recall: bool, net: Net) -> None:
    memory = GPM(net, 0.9, keep_examples=keep, recall=recall)
    train(net, memory.attach(adamw(net)), data())
    before = alive()  # with what other tests have left behind
    values = consolidated(memory, net)
    new = [x for identity, x in alive().items() if identity not in before and x.is_floating_point()]
    assert any(not values.isdisjoint(x.detach().flatten().tolist()) for x in new) is keep


def test_a_word_that_is_not_true_or_false_keeps_nothing_by_mistake(net: Net) -> None:
    for wrong in ("no", None, 2):
        with pytest.raises(ValueError, match="choose one of True, False"):
            GPM(net, keep_examples=wrong)  # type: ignore[arg-type]


def test_verify_still_checks_weights_and_buffers(net: Net) -> None:
    memory = GPM(net, 0.9, keep_examples=False)
    memory.consolidate(data())
    train(net, memory.attach(adamw(net)), data())
    result = memory.verify()
    assert result.worst < 1e-4
    assert not result.tasks
    assert "keep_examples=False" in str(result)
    assert [x.name for x in memory.verify(data()).tasks] == ["batches"]
    net.norm.running_mean.add_(1)
    with pytest.raises(LeakError, match=r"norm\.running_mean"):
        memory.verify()
    net.norm.running_mean.sub_(1)
    with torch.no_grad():
        net.hidden.weight.mul_(0.9)
    with pytest.raises(LeakError, match="hidden"):
        memory.verify()


def test_a_loaded_and_a_copied_memory_keep_no_examples_either(net: Net, tmp_path: Path) -> None:
    memory = GPM(net, 0.9, keep_examples=False)
    memory.consolidate(data())
    memory.save(tmp_path / "memory")
    for other in (GPM.load(tmp_path / "memory", net), copy.deepcopy(memory)):
        other.consolidate(data())
        assert not other.verify().tasks
