"""Layers are chosen by patterns of their names; an unknown pattern or setting is refused."""

from __future__ import annotations

import pytest
import torch
from attached import train_attached
from two_heads import TwoHeads

from remnant import GPM, UnsupportedError


@pytest.mark.parametrize(
    ("arguments", "protected"),
    [
        ({}, {"body.0", "body.3", "heads.0", "heads.1"}),
        ({"exclude": ["heads"]}, {"body.0", "body.3"}),
        ({"exclude": ["heads.*"]}, {"body.0", "body.3"}),
        ({"protect": ["body"]}, {"body.0", "body.3"}),
        ({"protect": ["body", "heads"], "exclude": ["heads.1", "body.0"]}, {"body.3", "heads.0"}),
        ({"protect": ["body.3.weight"]}, {"body.3"}),
        ({"protect": ["*.weight"]}, {"body.0", "body.3", "heads.0", "heads.1"}),
    ],
)
def test_patterns_choose_layers_by_their_own_name_or_an_ancestors(arguments: dict, protected: set[str]) -> None:
    assert set(GPM(TwoHeads(), **arguments).subspaces) == protected


def test_a_bias_selected_without_its_weight_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'heads\.1\.bias'"):
        GPM(TwoHeads(), exclude=["heads.1.weight"])


def test_excluded_parameters_move_and_the_others_do_not() -> None:
    model = TwoHeads()
    memory = GPM(model, threshold=1.0, exclude=["heads", "body.1.bias"])
    x = torch.randn(30, 6)
    with pytest.warns(UserWarning, match="These layers are full"):
        memory.consolidate(x)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_attached(memory, lambda: (model(x) - 1).square().sum())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert {"heads.0.weight", "heads.0.bias", "body.1.bias"} <= moved
    assert "body.1.weight" not in moved
    assert "body.0.weight" not in moved  # thirty rows of six inputs: full


@pytest.mark.parametrize("argument", ["protect", "exclude"])
def test_a_misspelt_pattern_is_refused_with_the_nearest_name(argument: str) -> None:
    with pytest.raises(ValueError, match=r"'haeds' matches nothing.*Did you mean 'heads'"):
        GPM(TwoHeads(), **{argument: ["haeds"]})
    with pytest.raises(ValueError, match=r"'zzzzzz' matches nothing.*body, heads"):
        GPM(TwoHeads(), **{argument: ["zzzzzz"]})


def test_one_pattern_without_its_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r'exclude=\["heads"\]'):
        GPM(TwoHeads(), exclude="heads")


@pytest.mark.parametrize("setting", ["bias", "norm", "rank_rule", "unsupported"])
def test_a_setting_that_does_not_exist_is_refused_with_those_that_do(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting}='frozen'.*'(freeze|paper)'"):
        GPM(TwoHeads(), **{setting: "frozen"})
