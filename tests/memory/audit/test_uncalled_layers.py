"""A layer no task calls is left alone; one that is trained without being called is an error."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from bitwise import frozen_copy, same
from small_net import adamw, data, train
from torch import Tensor, nn

from remnant import GPM, ConsolidationError


class SkipsOne(nn.Module):
    """`spare` is called in forward, through a function, or not at all."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layer, self.spare = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "function":
            return self.layer(x) + F.linear(x, self.spare.weight, self.spare.bias)
        return self.layer(x)


def test_a_layer_that_no_task_uses_adds_nothing_and_stops_nothing() -> None:
    model = SkipsOne("not at all")
    memory = GPM(model)
    optimizer = memory.attach(adamw(model))
    for _ in range(2):
        train(model, optimizer, data())
        added = memory.consolidate(data())
    assert added["spare"] == 0
    assert memory.subspaces["spare"].rank == 0
    memory.verify()


def test_a_layer_trained_through_a_function_is_an_error_that_names_it() -> None:
    model = SkipsOne("function")
    memory = GPM(model)
    train(model, memory.attach(adamw(model)), data())
    before = frozen_copy(memory.state_dict())
    with pytest.raises(ConsolidationError, match=r"'spare' got gradients.*never called.*exclude"):
        memory.consolidate(data())
    assert same(memory.state_dict(), before)
    memory.consolidate(data(), forward=lambda m, x: (m(x), m.spare(x)))  # the remedy the message gives
