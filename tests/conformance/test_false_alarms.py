"""`verify` is green when only rounding moved W·M, and red for a leak of a few times that size."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LeakError

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")


def trained(optimizer: str, dtype: torch.dtype, lr: float, steps: int, seed: int) -> tuple[GPM, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(dtype)
    memory = GPM(model, threshold=0.95)
    memory.consolidate((torch.randn(50, 6) @ torch.randn(6, 20)).to(dtype))
    chosen = memory.attach(OPTIMIZERS[optimizer](model.parameters(), lr=lr))
    x = (torch.randn(50, 20) + 1).to(dtype)
    for _ in range(steps):
        chosen.zero_grad()
        (model(x) - 1).square().mean().backward()
        chosen.step()
    return memory, x


@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    lr=st.sampled_from([1e-6, 1e-5, 1e-4, 1e-3, 1e-2]),
    steps=st.integers(1, 32),
    seed=st.integers(0, 99),
)
def test_rounding_is_no_leak_and_a_few_times_as_much_is(
    optimizer: str, dtype: torch.dtype, lr: float, steps: int, seed: int
) -> None:
    memory, _ = trained(optimizer, dtype, lr, steps, seed)
    layer = memory.verify(tolerance=1e-15).layers[0]
    weight = memory._model[0].weight.detach()
    moved = memory._protection.weights[0].difference(memory._constraint.anchors).norm()
    size = 4 * max(layer.rounding * float(moved), torch.finfo(dtype).eps * float(weight.norm()))
    basis = memory.subspaces["0"].basis[:20, :1].double()  # without the bias
    direction = torch.ones(30, 1, dtype=torch.float64) / 30**0.5 @ (basis / basis.norm()).mT
    weight.copy_(weight.double() + size * direction)
    with pytest.raises(LeakError, match="'0'"):
        memory.verify(tolerance=1e-15)


@pytest.mark.parametrize(("lr", "steps"), [(1e-3, 15), (1e-4, 7), (1e-5, 7), (1e-6, 15)])
def test_few_small_steps_of_plain_sgd_raise_no_alarm(lr: float, steps: int) -> None:
    for seed in range(10):
        memory, x = trained("sgd", torch.float32, lr, steps, seed)
        memory.verify(x)


OLD = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) @ torch.ones(2, 20).cumsum(1)
NEW = torch.randn(30, 20, generator=torch.Generator().manual_seed(2)) + 1


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor = NEW, steps: int = 10) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [1.0, 0.999])
def test_a_head_of_zeros_raises_no_alarm(
    dtype: torch.dtype, threshold: float, recwarn: pytest.WarningsRecorder
) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 3)).to(dtype)
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    memory = GPM(model, threshold=threshold)
    memory.consolidate(OLD.to(dtype))
    learn(model, memory.attach(torch.optim.AdamW(model.parameters(), lr=0.01)), NEW.to(dtype))
    assert memory.verify().tasks[0].drift is None
    assert not recwarn.list


def test_biases_that_are_free_by_choice_stay_so_when_the_model_is_frozen() -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 3))
    memory = GPM(model, bias="free")
    memory.consolidate(OLD)
    learn(model, memory.attach(torch.optim.AdamW(model.parameters(), lr=0.01)))
    model.requires_grad_(False)
    memory.verify()


class Meter(nn.Module):
    """Keeps a running mean of its outputs, which `read` adds to them."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.net, self.read = nn.Linear(20, 3), read
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        if self.training:
            self.mean.lerp_(y.detach().mean(0), 0.1)
        return y + self.mean if self.read else y


@pytest.mark.parametrize("read", [True, False])
def test_only_a_buffer_that_an_output_reads_turns_verify_red(read: bool) -> None:
    model = Meter(read)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(OLD)
    learn(model, memory.attach(torch.optim.SGD(model.parameters(), lr=0.01)))
    if read:
        with pytest.raises(LeakError, match="'mean'"):
            memory.verify()
    else:
        memory.verify()


def test_buffers_are_held_fixed_although_no_step_has_moved_them_yet() -> None:
    model = Meter(read=True)
    memory = GPM(model, threshold=1.0, unsupported="freeze")
    memory.consolidate(OLD)
    learn(model, memory.attach(torch.optim.SGD(model.parameters(), lr=0.01)))
    memory.verify()


class Experts(nn.Module):
    """The first expert takes all examples from the second step on; an auxiliary head takes part in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.out = nn.ModuleList(nn.Linear(20, 6) for _ in range(3)), nn.Linear(6, 3)
        self.auxiliary, self.first = nn.Linear(6, 3), True

    def forward(self, x: Tensor) -> Tensor:
        choice = torch.arange(len(x)) % 3 if self.first else torch.zeros(len(x)).long()
        h = x.new_zeros(len(x), 6)
        for number, expert in enumerate(self.experts):
            h = h.index_put(((choice == number).nonzero()[:, 0],), expert(x[choice == number]))
        return self.out(h) + self.auxiliary(h) if self.training else torch.as_tensor(self.out(h))


def test_trained_layers_that_no_example_reaches_any_more_are_mentioned_and_not_refused() -> None:
    model = Experts()
    memory = GPM(model, threshold=1.0)
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=0.01))
    learn(model, optimizer, OLD, steps=1)
    model.first = False
    with pytest.warns(UserWarning, match=r"no inputs of 'experts\.1', 'experts\.2', 'auxiliary'"):
        memory.consolidate(OLD)
    before = model.eval()(OLD).detach()
    learn(model, optimizer)
    assert float((model.eval()(OLD) - before).detach().norm() / before.norm()) < 1e-5
    memory.verify()


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "fixed from the start"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_shortens_its_rows_raises_an_alarm_only_if_a_row_really_moved(
    kind: type[nn.Module], trained: bool
) -> None:
    """Its forward shortens a row when it reads the row for the first time, and gives the same outputs as before."""
    torch.manual_seed(0)
    table = kind(30, 6, max_norm=0.5)
    table.weight.requires_grad_(trained)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(6 if kind is nn.EmbeddingBag else 12, 3))
    memory = GPM(model, threshold=0.9, unsupported="freeze")
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=0.1))
    seen, rest = torch.randint(0, 15, (2, 40, 2))
    everything = torch.cat([seen, rest + 15])
    for task, indices in enumerate((seen, everything)):
        for _ in range(3):
            optimizer.zero_grad()
            (model(indices) - 1).square().mean().backward()
            optimizer.step()
        if task == 0:
            before = copy.deepcopy(table)(everything).detach()
            memory.consolidate(seen)
    memory.verify()
    with torch.no_grad():
        assert torch.allclose(table(everything), before, rtol=1e-6)
        table.weight[seen[0, 0]] *= 0.9
    with pytest.raises(LeakError, match=r"'0\.weight'"):
        memory.verify()


def test_rows_that_another_layer_reads_are_not_shortened() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.middle = nn.Embedding(10, 4, max_norm=0.5), nn.Linear(4, 4)
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.table.weight

        def forward(self, indices: Tensor) -> Tensor:
            return self.out(self.middle(self.table(indices)))

    model = Tied()
    memory = GPM(model, threshold=0.9, unsupported="freeze")
    long = model.table.weight[5:].detach().clone()
    memory.consolidate(torch.arange(5))
    assert torch.equal(model.table.weight[5:], long)


class Limited(nn.Module):
    """Changes its own weight in the forward pass: clamps it, or scales its rows to one length."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(10, 8), nn.Linear(8, 3)
        self.way, self.limit = way, 0.1

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight.data
        if self.way == "clamp":
            weight.clamp_(-self.limit, self.limit)
        else:
            weight.copy_(self.limit * nn.functional.normalize(weight, dim=1))
        return self.out(torch.tanh(self.first(x)))


def limited(way: str, unsupported: str) -> tuple[Limited, GPM, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Limited(way)
    memory = GPM(model, threshold=0.9, unsupported=unsupported)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=1.0))
    step_by(model, optimizer)
    return model, memory, optimizer


def step_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.randn(40, 10)) - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("way", ["clamp", "normalise"])
def test_a_fixed_weight_that_forward_limits_raises_an_alarm_only_if_it_really_moved(way: str) -> None:
    model, memory, optimizer = limited(way, "freeze")
    x = torch.randn(40, 3) @ torch.randn(3, 10)
    memory.consolidate(x)
    model(x)
    before = model.first(x)
    step_by(model, optimizer)
    memory.verify()
    torch.testing.assert_close(model.first(x), before)
    model.limit = 0.05
    with pytest.raises(LeakError, match="'first'"):
        memory.verify()


@pytest.mark.parametrize("way", ["clamp", "normalise"])
def test_a_trained_weight_that_forward_limits_is_refused_by_name(way: str) -> None:
    _, memory, _ = limited(way, "error")
    with pytest.raises(ConsolidationError, match="rule does not cover: 'first'"):
        memory.consolidate(torch.randn(40, 3) @ torch.randn(3, 10))


@pytest.mark.parametrize("way", ["clamp", "normalise"])
def test_a_free_weight_that_forward_limits_raises_an_alarm(way: str) -> None:
    """The limit moves the weight inside the memory, so W·M has changed."""
    model, memory, optimizer = limited(way, "free")
    memory.consolidate(torch.randn(40, 3) @ torch.randn(3, 10))
    step_by(model, optimizer)
    with pytest.raises(LeakError, match="'first'"):
        memory.verify()
