"""What a memory protects, holds, leaves free or refuses in a model it has never seen."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from remnant import GPM, ConsolidationError, LayerView, UnsupportedError, register_layer
from remnant.memory import layers

pytestmark = pytest.mark.filterwarnings("ignore:Full, and from now on fixed")


@pytest.fixture
def own_rules() -> Iterator[None]:
    """Rules registered in a test end with it."""
    before = dict(layers._rules)
    yield
    layers._rules.clear()
    layers._rules.update(before)


def fates(memory: GPM) -> dict[str, str]:
    """Parameter name → protected, frozen or free."""
    plan = memory._plan
    names = {id(p): name for name, p in memory.model.named_parameters()}
    protected = {names[id(p)]: "protected" for weight in plan.weights for p in weight.parameters}
    frozen = {names[id(p)]: "frozen" for p in plan.frozen.values()}
    free = {names[id(p)]: "free" for p in plan.free.values()}
    everything = protected | frozen | free
    assert len(everything) == len(protected) + len(frozen) + len(free), "one parameter, one fate"
    return everything


def train(
    memory: GPM,
    loss: Callable[[], Tensor],
    steps: int = 20,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    lr: float = 0.05,
) -> None:
    chosen = memory.attach(optimizer(memory.model.parameters(), lr=lr))
    for _ in range(steps):
        chosen.zero_grad()
        loss().backward()
        chosen.step()
    memory.detach(chosen)


class Net(nn.Module):
    """A body with a norm, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5, bias=False))
        self.heads = nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[0](self.body(x))


# --- what nothing covers ------------------------------------------------------------------------------------------


class WithToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.cls_token)


class ClippedLinear(nn.Linear):
    """Looks like a Linear, and does something else to its input."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.relu())


@pytest.mark.parametrize(
    ("model", "named", "kind"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3)), "1.weight_ih_l0", "LSTM"),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU()), "1.weight", "PReLU"),
        (WithToken(), "cls_token", "WithToken"),
        (nn.Sequential(nn.Linear(3, 3), ClippedLinear(3, 3)), "1.weight", "ClippedLinear"),
        (
            nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(4, 2, add_bias_kv=True)),
            "1.bias_k",
            "MultiheadAttention",
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.Embedding(4, 3, max_norm=1.0)), "1.weight", "Embedding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_parameter_no_rule_covers_is_named_and_the_ways_out_are_told(model: nn.Module, named: str, kind: str) -> None:
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
    train(memory, lambda: model(x).square().sum())
    assert not torch.equal(model.cls_token, started), "nothing is held before the first task is remembered"
    memory.consolidate(x)
    started = model.cls_token.detach().clone()
    train(memory, lambda: (model(x) - 1).square().sum())
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


def test_a_lazy_layer_is_refused_until_it_has_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(UnsupportedError, match=r"'0\.weight'.*lazy.*one batch"):
        GPM(model)
    model(torch.randn(1, 4))
    assert set(GPM(model).subspaces) == {"0", "1"}


def test_a_model_with_nothing_to_protect_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Nothing to protect"):
        GPM(nn.LayerNorm(3))
    with pytest.raises(UnsupportedError, match="Nothing to protect"):
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
    model = Net()
    memory = GPM(model, exclude=["heads.*"])
    model.heads.append(nn.Linear(5, 4))
    memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model.body.append(nn.Linear(5, 5))
    with pytest.raises(ValueError, match=r"'body\.4\.weight'"):
        memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))


# --- patterns -----------------------------------------------------------------------------------------------------


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
    assert set(GPM(Net(), **arguments).subspaces) == protected


def test_a_bias_left_without_its_weight_is_said_rather_than_decided() -> None:
    with pytest.raises(UnsupportedError, match=r"'heads\.1\.bias'"):
        GPM(Net(), exclude=["heads.1.weight"])


def test_excluded_parameters_move_and_the_others_do_not() -> None:
    model = Net()
    memory = GPM(model, threshold=1.0, exclude=["heads", "body.1.bias"])
    x = torch.randn(30, 6)
    with pytest.warns(UserWarning, match="Full"):
        memory.consolidate(x)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(memory, lambda: (model(x) - 1).square().sum())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert {"heads.0.weight", "heads.0.bias", "body.1.bias"} <= moved
    assert "body.1.weight" not in moved
    assert "body.0.weight" not in moved  # thirty rows of six inputs: full


@pytest.mark.parametrize("argument", ["protect", "exclude"])
def test_a_misspelt_pattern_is_refused_with_the_nearest_name(argument: str) -> None:
    with pytest.raises(ValueError, match=r"'haeds' matches nothing.*Did you mean 'heads'"):
        GPM(Net(), **{argument: ["haeds"]})
    with pytest.raises(ValueError, match=r"'zzzzzz' matches nothing.*body, heads"):
        GPM(Net(), **{argument: ["zzzzzz"]})


def test_one_pattern_without_its_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r'exclude=\["heads"\]'):
        GPM(Net(), exclude="heads")


@pytest.mark.parametrize("setting", ["bias", "norm", "rank_rule", "unsupported"])
def test_a_setting_that_does_not_exist_is_refused_with_those_that_do(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting}='frozen'.*'(freeze|paper)'"):
        GPM(Net(), **{setting: "frozen"})


# --- biases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["augment", "freeze", "free"])
def test_a_bias_is_an_input_of_one_or_fixed_or_free(mode: str) -> None:
    model = nn.Linear(6, 4)
    memory = GPM(model, threshold=1.0, bias=mode)
    old = torch.randn(30, 2) @ torch.randn(2, 6) + torch.randn(6)
    memory.consolidate(old)
    assert memory.subspaces["model"].capacity == (7 if mode == "augment" else 6)
    before, bias = model(old).detach(), model.bias.detach().clone()
    new = torch.randn(30, 6)
    train(memory, lambda: (model(new) - 1).square().sum())
    drift = (model(old) - before).abs().max()
    assert torch.equal(model.bias, bias) == (mode == "freeze")
    assert (drift < 1e-5) == (mode != "free")


@pytest.mark.parametrize("lr", [{"weight": 0.05, "bias": 0.2}, {"weight": 0.05, "bias": 0.05}], ids=str)
def test_a_bias_with_a_learning_rate_of_its_own_does_not_leak(lr: dict[str, float]) -> None:
    """Weight and bias are projected together: stepped by different amounts they would leave the allowed space."""
    model = nn.Linear(6, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.randn(30, 2) @ torch.randn(2, 6) + torch.randn(6))
    optimizer = memory.attach(
        torch.optim.SGD([{"params": [p], "lr": lr[name]} for name, p in model.named_parameters()], lr=1.0)
    )
    for _ in range(20):
        optimizer.zero_grad()
        (model(torch.randn(30, 6)) - 1).square().mean().backward()
        optimizer.step()
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("bias_in", ["another optimizer", "no optimizer"])
def test_a_weight_trained_apart_from_its_bias_does_not_leak(bias_in: str) -> None:
    model = nn.Linear(6, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.randn(30, 2) @ torch.randn(2, 6) + torch.randn(6))
    optimizers = [memory.attach(torch.optim.SGD([model.weight], lr=0.1))]
    if bias_in == "another optimizer":
        optimizers.append(memory.attach(torch.optim.SGD([model.bias], lr=0.3)))
    for _ in range(20):
        model.zero_grad()
        (model(torch.randn(30, 6)) - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert memory.verify().worst < 1e-5


# --- normalisation ------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """A norm of the user's own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8), RMSNorm(8)])
@pytest.mark.parametrize("mode", ["freeze", "free"])
def test_norms_hold_still_from_the_second_task_on_or_train(norm: nn.Module, mode: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), copy.deepcopy(norm), nn.Linear(8, 2))
    memory = GPM(model, norm=mode)
    x = torch.randn(30, 6)
    states: list[dict[str, Tensor]] = [copy.deepcopy(model[1].state_dict())]
    for target in (1.0, -1.0):
        train(memory, lambda target=target: (model(x) - target).square().sum())
        memory.consolidate(x)
        states.append(copy.deepcopy(model[1].state_dict()))

    def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
        return all(torch.equal(a[key], b[key]) for key in a)

    assert not same(states[0], states[1])
    assert same(states[1], states[2]) == (mode == "freeze")


def test_running_statistics_hold_through_train_mode_until_detach() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    memory = GPM(model)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model.train()
    memory.consolidate(torch.randn(30, 6))
    assert model.training
    statistics = copy.deepcopy(model[1].state_dict())
    model.eval()
    model.train()
    with torch.no_grad():
        model(torch.randn(30, 6) * 100)
    assert not model[1].training
    assert all(torch.equal(tensor, statistics[name]) for name, tensor in model[1].state_dict().items())
    memory.detach(optimizer)
    assert model[1].training
    with torch.no_grad():
        model(torch.randn(30, 6) * 100)
    assert not torch.equal(model[1].running_mean, statistics["running_mean"])
    model.eval()
    assert not model[1].training


def test_a_model_with_held_norms_can_be_copied_and_saved() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    memory = GPM(model)
    memory.consolidate(torch.randn(30, 6))
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        other.train()
        assert not other[1].training
        assert other[1].train.args[0] is other[1], "the copy must hold itself, not the model it came from"
    memory.detach()
    assert model.train()[1].training


# --- shared weights -----------------------------------------------------------------------------------------------


def test_two_layers_with_one_weight_and_two_biases_share_a_subspace() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 5), nn.Linear(8, 5)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(y)

    model = Twins()
    memory = GPM(model, threshold=1.0)
    x, y = torch.randn(20, 2) @ torch.randn(2, 8) + 1, torch.randn(20, 2) @ torch.randn(2, 8) - 1
    memory.consolidate({"x": x, "y": y})
    assert set(memory.subspaces) == {"a"}
    assert memory.subspaces["a"].capacity == 8 + 2
    before = model(x, y)
    train(memory, lambda: sum((out - 3).square().mean() for out in model(torch.randn(9, 8), torch.randn(9, 8))))
    for now, then in zip(model(x, y), before, strict=True):
        torch.testing.assert_close(now, then, atol=2e-5, rtol=0)


def test_a_module_called_twice_remembers_both_inputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6, bias=False)
            self.again = self.layer

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.layer(x))

    model = Twice().double()
    memory = GPM(model, threshold=1.0)
    x = torch.randn(2, 6, dtype=torch.float64)
    assert memory.consolidate(x) == {"layer": 4}
    both = torch.cat([x, model.layer(x).detach()])
    torch.testing.assert_close(memory.subspaces["layer"].remove(both), torch.zeros_like(both))


class TinyLM(nn.Module):
    """An embedding whose weight is the output layer's too."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.head = nn.Linear(6, 12, bias=bias)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("bias", [False, True])
def test_tied_embeddings_hold_both_constraints_at_once(bias: bool) -> None:
    model = TinyLM(bias)
    memory = GPM(model, threshold=1.0)
    old = torch.tensor([[0, 1, 2]])
    memory.consolidate(old)
    assert set(memory.subspaces) == {"embed", "head"}
    assert fates(memory) == {"embed.weight": "protected"} | ({"head.bias": "frozen"} if bias else {})
    before, weight = model(old).detach(), model.embed.weight.detach().clone()
    new = torch.randint(12, (5, 4))
    train(memory, lambda: nn.functional.cross_entropy(model(new).flatten(0, 1), new.flatten()), steps=50)
    moved = model.embed.weight.detach() - weight
    assert moved.norm() > 0.1, "the other tokens must still learn"
    assert torch.equal(moved[:3], torch.zeros(3, 6))
    seen = memory.subspaces["head"].basis.to(moved)
    assert (moved @ seen).norm() < 1e-5
    torch.testing.assert_close(model(old), before, atol=1e-5, rtol=0)
    memory.verify()


@pytest.mark.parametrize(
    ("arguments", "protected"),
    [
        ({"protect": ["head"]}, {"head"}),
        ({"protect": ["embed"]}, {"embed"}),
        ({"exclude": ["embed"]}, {"head"}),
        ({"exclude": ["head.weight"]}, {"embed"}),
    ],
    ids=str,
)
def test_of_two_layers_that_share_a_weight_a_pattern_may_mean_one(arguments: dict, protected: set[str]) -> None:
    assert set(GPM(TinyLM(bias=False), **arguments).subspaces) == protected


def test_a_weight_seen_in_ways_that_exclude_each_other_is_refused() -> None:
    a, b = nn.Conv1d(4, 4, 1, groups=1), nn.Conv1d(8, 4, 1, groups=2)
    b.weight = a.weight
    with pytest.raises(UnsupportedError, match=r"'0\.weight'.*exclude each other"):
        GPM(nn.Sequential(a, b))


# --- names --------------------------------------------------------------------------------------------------------


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
    inner = Net()
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
        memory = GPM(DistributedDataParallel(Net()), exclude=["heads"])
        assert set(memory.consolidate(torch.randn(20, 6))) == {"body.0", "body.3"}
    finally:
        dist.destroy_process_group()


# --- a user's own layer -------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """y = W·(2x), a layer nobody has heard of."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return (2 * x) @ self.matrix.mT


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize("kind", [Scaled, f"{__name__}.Scaled"], ids=["type", "name"])
def test_a_registered_layer_is_protected_like_any_other(kind: type[nn.Module] | str) -> None:
    model = nn.Sequential(Scaled(6, 4))
    with pytest.raises(UnsupportedError, match=r"register_layer\(Scaled, rule\)"):
        GPM(model)
    register_layer(kind, lambda layer: LayerView(layer.matrix, lambda x: (2 * x).reshape(-1, 6)))
    memory = GPM(model, threshold=1.0)
    old = torch.randn(3, 6)
    assert memory.consolidate(old) == {"0": 3}
    before = model(old).detach()
    train(memory, lambda: (model(torch.randn(9, 6)) - 1).square().mean())
    torch.testing.assert_close(model(old), before, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("own_rules")
def test_mistakes_in_registering_a_layer_are_told() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module type"):
        register_layer(Scaled(2, 2), lambda layer: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"nn\.Module type"):
        register_layer(dict, lambda layer: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function layer -> LayerView"):
        register_layer(Scaled, "rule")  # type: ignore[arg-type]
    model = nn.Sequential(Scaled(6, 4))
    register_layer(Scaled, lambda layer: None)
    with pytest.raises(TypeError, match=r"rule for Scaled.*LayerView"):
        GPM(model)
    register_layer(Scaled, lambda layer: LayerView(layer.matrix, lambda x: x[:, :5]))
    with pytest.raises(ConsolidationError, match=r"'0'.*\(2, 5\)|'0'.*\(1, 2, 5\)"):
        GPM(model).consolidate(torch.randn(2, 6))


@pytest.mark.usefixtures("own_rules")
def test_two_views_of_one_layer_need_two_names() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(4, 6)) for _ in "ab")

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.a.mT).sigmoid() * (x @ self.b.mT)

    def unnamed(layer: Gated) -> list[LayerView]:
        return [LayerView(weight, lambda x: x) for weight in (layer.a, layer.b)]

    def named(layer: Gated) -> list[LayerView]:
        return [LayerView(weight, lambda x: x, part=part) for part, weight in [("a", layer.a), ("b", layer.b)]]

    register_layer(Gated, unnamed)
    with pytest.raises(ValueError, match="part="):
        GPM(nn.Sequential(Gated()))
    register_layer(Gated, named)
    assert set(GPM(nn.Sequential(Gated())).subspaces) == {"0.a", "0.b"}
