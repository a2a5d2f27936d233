"""The memory follows a model to another type or device, and notices a replaced parameter."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from small_net import Net, adamw, data, train
from torch import nn

from remnant import GPM

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def test_a_model_made_float64_after_creation_is_protected_on(memory: GPM, net: Net) -> None:
    net.double()
    x = data().double()
    train(net, memory.attach(adamw(net)), x)
    assert memory.verify(x).worst < 1e-5
    memory.consolidate(x)
    train(net, memory.attach(adamw(net)), data().double())
    memory.verify()


def test_a_model_made_bfloat16_after_creation_is_protected_as_far_as_it_rounds(memory: GPM, net: Net) -> None:
    net.bfloat16()
    x = data().bfloat16()
    train(net, memory.attach(torch.optim.AdamW(net.parameters(), lr=0.05)), x, steps=30)
    result = memory.verify()
    assert all(check.leak <= max(1e-4, check.rounding) for check in result.layers)
    memory.consolidate(x)
    assert len(memory) == 2
    memory.verify()


@pytest.mark.gpu
def test_a_model_moved_to_a_gpu_and_back_takes_its_memory_along(memory: GPM, net: Net, tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        net.to(device)
        x = data()
        train(net, memory.attach(adamw(net)), x.to(device))
        assert memory.verify(x).worst < 1e-4, "batches go where the model is"
        memory.consolidate(x)
    memory.save(tmp_path / "memory")
    loaded = GPM.load(tmp_path / "memory", net.cuda())
    train(net, loaded.attach(adamw(net)), data().cuda())
    loaded.verify()


@pytest.mark.gpu
def test_so_does_one_whose_channels_lie_last() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 2, bias=False), nn.Flatten()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    memory = GPM(net, threshold=0.9)
    memory.consolidate(torch.randn(2, 3, 3, 3))
    x = torch.randn(8, 3, 3, 3, device="cuda")
    net.to("cuda")
    optimizer = memory.attach(torch.optim.AdamW(net.parameters(), lr=0.1))
    net(x).square().mean().backward()
    optimizer.step()
    assert memory.verify().worst < 1e-4


@pytest.mark.parametrize("replaced", ["out", "norm"])
def test_a_parameter_replaced_after_creation_is_noticed(memory: GPM, net: Net, replaced: str) -> None:
    setattr(net, replaced, copy.deepcopy(getattr(net, replaced)))
    for use in (
        lambda: memory.consolidate(data()),
        lambda: memory.attach(adamw(net)),
        lambda: memory.state_dict(),
        lambda: memory.load_state_dict({}),
        memory.verify,
    ):
        with pytest.raises(RuntimeError, match=rf"'{replaced}.*replaced"):
            use()
