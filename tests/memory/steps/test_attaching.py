"""What `attach` takes and refuses, and that it keeps no optimizer alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from small_net import Net, adamw, data, train
from torch import nn
from torch.optim import SGD

from remnant import GPM


def test_old_optimizers_are_not_kept_alive(memory: GPM, net: Net) -> None:
    optimizers = [memory.attach(adamw(net)) for _ in range(4)]
    for optimizer in optimizers:
        train(net, optimizer, data(), steps=2)
    gone = [weakref.ref(optimizer) for optimizer in optimizers]
    del optimizers, optimizer
    gc.collect()
    assert [found() for found in gone] == [None] * 4
    memory.verify()
    memory.attach(last := adamw(net))
    assert len(memory._attached) == 1
    train(net, last, data())
    memory.verify()


def test_an_optimizer_of_free_parameters_alone_is_harmless() -> None:
    model = nn.ModuleDict({"body": nn.Linear(8, 4), "head": nn.Linear(4, 2)})
    memory = GPM(model, exclude=["head"])
    memory.consolidate(data(), forward=lambda model, x: model["head"](model["body"](x)))
    optimizer = memory.attach(SGD(model["head"].parameters(), lr=0.1))
    whole = nn.Sequential(model["body"], model["head"])
    before = [p.detach().clone() for p in model["head"].parameters()]
    train(whole, optimizer, data(), steps=3)
    assert all(not torch.equal(p, old) for p, old in zip(model["head"].parameters(), before, strict=True))
    optimizer.add_param_group({"params": model["body"].parameters(), "weight_decay": 0.1})
    train(whole, optimizer, data(), steps=20)
    assert memory.verify().worst < 1e-5, "weights that join later are protected"


def test_a_second_memory_is_refused_until_the_first_lets_go(net: Net) -> None:
    memories = [GPM(net), GPM(net)]
    optimizer = memories[0].attach(adamw(net))
    with pytest.raises(ValueError, match=r"another memory.*detach\(\)"):
        memories[1].attach(optimizer)
    memories[0].detach(optimizer)
    assert memories[1].attach(optimizer) is optimizer
    del memories  # as when a cell of a notebook runs again
    gc.collect()
    GPM(net).attach(optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_what_is_no_optimizer_is_refused_with_the_right_call(memory: GPM, net: Net) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(adamw(net), 1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adamw(net))
    for wrong, fix in (
        (net, r"not a model: memory\.attach\(torch\.optim\.SGD\(model\.parameters"),
        (scheduler, r"memory\.attach\(scheduler\.optimizer\)"),
        (plateau, r"memory\.attach\(scheduler\.optimizer\)"),
        ("adam", r"not 'adam': memory\.attach\(torch"),
        (None, r"not None"),
        (net.parameters(), r"memory\.attach\(torch"),
    ):
        with pytest.raises(TypeError, match=fix):
            memory.attach(wrong)
