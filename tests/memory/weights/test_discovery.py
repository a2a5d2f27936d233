"""How a memory treats parameters that no rule covers, that do not train, or that are added later."""

from __future__ import annotations

import pytest
import torch
from attached import train_attached
from fates import fates
from torch import Tensor, nn
from two_heads import TwoHeads

from remnant import GPM, UnsupportedError
from remnant.memory import StepProjector


class WithToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.cls_token)


@pytest.mark.parametrize(
    ("model", "named", "kind"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3)), "1.weight_ih_l0", "LSTM"),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU()), "1.weight", "PReLU"),
        (WithToken(), "cls_token", "WithToken"),
        (
            nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(4, 2, add_bias_kv=True)),
            "1.bias_k",
            "MultiheadAttention",
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.Embedding(4, 3, max_norm=1.0)), "1.weight", "Embedding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_parameter_no_rule_covers_is_named_with_the_ways_out(model: nn.Module, named: str, kind: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        GPM(model)
    message = str(refused.value)
    assert repr(named) in message
    assert kind in message
    for way_out in ('unsupported="freeze"', 'unsupported="free"', "exclude"):
        assert way_out in message


@pytest.mark.parametrize("decision", ["freeze", "free"])
def test_what_nothing_covers_is_frozen_or_free_as_decided(decision: str) -> None:
    model = WithToken()
    memory = GPM(model, unsupported=decision)
    x = torch.randn(20, 4)
    started = model.cls_token.detach().clone()
    train_attached(memory, lambda: model(x).square().sum())
    assert not torch.equal(model.cls_token, started), "nothing is held before the first task is remembered"
    assert StepProjector(memory).frozen_parameters == []
    memory.consolidate(x)
    assert [id(p) for p in StepProjector(memory).frozen_parameters] == (
        [id(model.cls_token)] if decision == "freeze" else []
    )
    started = model.cls_token.detach().clone()
    train_attached(memory, lambda: (model(x) - 1).square().sum())
    assert torch.equal(model.cls_token, started) == (decision == "freeze")
    memory.verify()


def test_a_weight_normed_layer_is_refused_with_its_reason() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    with pytest.raises(UnsupportedError, match=r"'1\..*parametrized"):
        GPM(model)
    memory = GPM(model, unsupported="freeze")
    assert {name for name, fate in fates(memory).items() if fate == "frozen"} == {
        "1.bias",
        "1.parametrizations.weight.original0",
        "1.parametrizations.weight.original1",
    }


def test_all_parameters_without_a_rule_are_named_at_once() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(3, 3), "token": WithToken(), "norm": nn.PReLU(), "fc": nn.Linear(3, 3)})
    with pytest.raises(UnsupportedError) as refused:
        GPM(model)
    message = str(refused.value)
    uncovered = [*(f"rnn.{name}" for name, _ in model["rnn"].named_parameters()), "token.cls_token", "norm.weight"]
    for name in uncovered:
        assert repr(name) in message
    assert "'fc." not in message
    assert set(GPM(model, exclude=uncovered).subspaces) == {"token.out", "fc"}


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Linear(3, 3, device="meta"), "meta"),
        (nn.Linear(3, 3, dtype=torch.complex64), "complex"),
        (nn.Linear(3, 0), "size zero"),
    ],
    ids=["meta", "complex", "zero"],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_weights_that_no_projection_fits_are_refused_at_once(layer: nn.Module, reason: str) -> None:
    model = nn.ModuleDict({"good": nn.Linear(3, 3), "bad": layer})
    with pytest.raises(UnsupportedError, match=rf"'bad\.weight' [^;]*{reason}.*'bad\.bias'"):
        GPM(model)
    assert set(GPM(model, exclude=["bad"]).subspaces) == {"good"}


def test_weights_that_are_sharded_over_their_inputs_are_refused_at_once() -> None:
    tensor = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        layer = nn.Linear(4, 4)
        layer.weight = nn.Parameter(tensor.distribute_tensor(layer.weight.detach(), mesh, [tensor.Shard(1)]))
        with pytest.raises(UnsupportedError, match=r"tensor parallelism splits the layer's inputs"):
            GPM(layer)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("wrong", [[1], "x", None, nn.Linear])
def test_what_is_no_model_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"GPM takes a torch\.nn\.Module, not"):
        GPM(wrong)  # type: ignore[arg-type]


def test_a_lazy_layer_is_refused_until_it_has_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(UnsupportedError, match=r"'0\.weight'.*lazy.*one batch"):
        GPM(model)
    model(torch.randn(1, 4))
    assert set(GPM(model).subspaces) == {"0", "1"}


def test_a_model_with_nothing_to_protect_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="nothing to protect"):
        GPM(nn.LayerNorm(3))
    with pytest.raises(UnsupportedError, match="nothing to protect"):
        GPM(nn.Linear(3, 3).requires_grad_(False))


def test_layers_that_do_not_train_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    memory = GPM(model)
    assert fates(memory) == {"1.weight": "frozen", "1.bias": "frozen", "2.weight": "protected", "2.bias": "protected"}


def test_training_a_layer_that_was_fixed_when_the_memory_was_made_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    memory = GPM(model)
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"'0\.weight'"):
        memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_head_may_be_added_later_under_an_excluded_name() -> None:
    model = TwoHeads()
    memory = GPM(model, exclude=["heads.*"])
    model.heads.append(nn.Linear(5, 4))
    memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model.body.append(nn.Linear(5, 5))
    with pytest.raises(ValueError, match=r"'body\.4\.weight'"):
        memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
