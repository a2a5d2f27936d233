"""A layer's name is the one in the user's own model, whatever wraps it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from two_heads import TwoHeads

from remnant import GPM

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def test_a_model_that_is_itself_a_layer_is_called_model() -> None:
    memory = GPM(nn.Linear(3, 2))
    memory.consolidate(torch.randn(2, 3))
    assert set(memory.subspaces) == {"model"}


def test_a_child_called_model_is_nothing_special() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 3)
            self.module = nn.Sequential(nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.module(self.model(x))

    memory = GPM(Outer(), exclude=["module"])
    memory.consolidate(torch.randn(2, 3))
    assert set(memory.subspaces) == {"model"}


def test_wrappers_do_not_change_names(tmp_path: pytest.TempPathFactory) -> None:
    inner = TwoHeads()
    names = set(GPM(inner).subspaces)
    partly = copy.deepcopy(inner)
    partly.body[0] = torch.compile(partly.body[0], backend="eager")
    for wrapped in (
        torch.compile(inner, backend="eager"),
        DataParallel(inner),
        torch.compile(DataParallel(inner)),
        partly,
    ):
        memory = GPM(wrapped, exclude=["heads.1"])
        assert set(memory.subspaces) == names - {"heads.1"}
        memory.consolidate(torch.randn(20, 6))
        memory.save(tmp_path / "memory")
        bare = copy.deepcopy(inner)
        assert set(GPM.load(tmp_path / "memory", bare).subspaces) == names - {"heads.1"}


def test_a_distributed_wrapper_does_not_change_names(tmp_path: pytest.TempPathFactory) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        memory = GPM(DistributedDataParallel(TwoHeads()), exclude=["heads"])
        assert set(memory.consolidate(torch.randn(20, 6))) == {"body.0", "body.3"}
    finally:
        dist.destroy_process_group()
