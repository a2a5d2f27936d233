"""A task is recorded in the path that the model's own eval() chooses, and every mode is afterwards as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from remnant import GPM


class TwoPaths(nn.Module):
    """train() and eval() choose a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast, self.drop = nn.Linear(6, 4), nn.Linear(6, 4), nn.Dropout(0.5)
        self.chosen = "slow"

    def train(self, mode: bool = True) -> TwoPaths:
        super().train(mode)
        self.chosen = "slow" if mode else "fast"
        return self

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.drop(getattr(self, self.chosen)(x)))


@pytest.mark.parametrize("fails", [False, True])
def test_the_path_of_eval_is_recorded_and_that_of_train_is_back_afterwards(fails: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), TwoPaths())
    model.train()
    model[1].drop.eval()
    memory = GPM(model, threshold=0.9)
    if fails:
        with pytest.raises(RuntimeError):
            memory.consolidate([torch.randn(3, 6), torch.randn(3, 7)])
    else:
        added = memory.consolidate(torch.randn(9, 6))
        assert added["1.fast"] > 0
        assert added["1.slow"] == 0
    assert model[1].chosen == "slow"
    assert [module.training for module in model.modules()] == [True, True, True, True, True, False]


def test_a_model_in_eval_mode_has_its_path_back_afterwards() -> None:
    model = TwoPaths().eval()
    added = GPM(model, threshold=0.9).consolidate(torch.randn(9, 6))
    assert added["fast"] > 0
    assert added["slow"] == 0
    assert model.chosen == "fast"
    assert not any(module.training for module in model.modules())


def test_a_module_in_another_mode_than_its_model_gets_its_own_path_back() -> None:
    model = nn.Sequential(TwoPaths(), nn.Linear(4, 6), TwoPaths()).train()
    model[2].eval()
    GPM(model, threshold=0.9).consolidate(torch.randn(9, 6))
    assert (model[0].chosen, model[2].chosen) == ("slow", "fast")
    assert (model[0].training, model[2].training) == (True, False)
