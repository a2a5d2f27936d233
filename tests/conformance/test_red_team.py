"""Models and loops that tried to make a memory lie: each is protected to rounding, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from remnant import GPM, ConsolidationError, LeakError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")
EXACT = 1e-11  # relative drift in float64 at a threshold of 1


def seeded(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


VECTORS = seeded(0, 30, 2) @ seeded(1, 2, 20), seeded(2, 30, 20) + 1
IMAGES = seeded(0, 12, 2, 1, 1).expand(12, 2, 8, 8).contiguous(), seeded(2, 12, 2, 8, 8) + 1  # old ones are plain areas
SEQUENCES = (seeded(0, 100, 2) @ seeded(1, 2, 8)).reshape(20, 5, 8), seeded(2, 20, 5, 8) + 1
LONGER = (seeded(0, 80, 2) @ seeded(1, 2, 8)).reshape(20, 4, 8), seeded(2, 20, 7, 8) + 1


class Net(nn.Module):
    """Parts, and a function that puts them together."""

    def __init__(self, use: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.use(self, x)


def wide(use: Callable[..., Any], **more: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Hidden units outnumber the examples, so that no layer is full and every weight can move."""
    return lambda: Net(
        use, body=nn.Linear(20, 64), out=nn.Linear(64, 3), **{name: make() for name, make in more.items()}
    )


def plain(m: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(m.out(torch.tanh(m.body(x))))


def equilibrium(m: Any, x: Tensor) -> Tensor:
    h = torch.zeros(len(x), 64)
    for _ in range(5):
        h = torch.tanh(m.again(h) + m.body(x))
    return torch.as_tensor(m.out(h))


def early_exit(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.body(x))
    first = m.first(h)
    sure = first.softmax(-1).amax(-1, keepdim=True) > 0.6
    return torch.where(sure, first, m.out(torch.tanh(m.deeper(h))))


def attends(m: Any, x: Tensor) -> Tensor:
    mask = torch.zeros(5, 5, dtype=torch.bool).fill_diagonal_(True)
    padding = (torch.arange(5) >= 4)[None].expand(len(x), 5)
    return torch.as_tensor(m.head(m.attention(query=x, key=x, value=x, key_padding_mask=padding, attn_mask=mask)[0]))


class SkippingExperts(nn.Module):
    """Each example goes to one expert; experts without examples are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.out = nn.Linear(20, 8), nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(20, 6) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        choice, h = self.router(x).argmax(-1), x.new_zeros(len(x), 6)
        for number in choice.unique().tolist():
            own = (choice == number).nonzero()[:, 0]
            h = h.index_add(0, own, self.experts[number](x[own]))
        return torch.as_tensor(self.out(torch.tanh(h)))


class Rotary(nn.Module):
    """Grouped-query attention with a cache of angles, a buffer that grows with the longest sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, size, bias=False) for size in (8, 4, 4))
        self.out = nn.Linear(8, 3)
        self.register_buffer("angles", torch.zeros(0), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        if len(self.angles) < x.shape[-2]:
            self.angles = torch.arange(x.shape[-2])[:, None] * torch.tensor([1.0, 0.1])
        cos, sin = self.angles[: x.shape[-2]].cos(), self.angles[: x.shape[-2]].sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (-1, 4)).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        h = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        return torch.as_tensor(self.out(h.transpose(1, 2).flatten(2)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(2, 6, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(6, momentum=None)
        self.lower, self.up = nn.Conv2d(6, 8, 3, 2, 1), nn.ConvTranspose2d(8, 6, 2, 2)
        self.out = nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norm(self.down(x)))
        return torch.as_tensor(self.out(torch.cat([self.up(F.relu(self.lower(a))), a], 1)))


class Transposed(nn.Module):
    """Weights that are not contiguous in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(20, 64), nn.Linear(64, 3)
        for layer in (self.body, self.out):
            layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())

    def forward(self, x: Tensor) -> Tensor:
        return plain(self, x)


PROTECTED: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
    "modulated features": (
        wide(
            lambda m, x: m.out(torch.tanh(m.body(x)) * m.scale(x) + m.shift(x)),
            scale=lambda: nn.Linear(20, 64),
            shift=lambda: nn.Linear(20, 64),
        ),
        VECTORS,
    ),
    "equilibrium": (wide(equilibrium, again=lambda: nn.Linear(64, 64)), VECTORS),
    "early exit": (wide(early_exit, first=lambda: nn.Linear(64, 3), deeper=lambda: nn.Linear(64, 64)), VECTORS),
    "low-rank adapter": (
        wide(
            lambda m, x: m.out(torch.tanh(m.body(x) + m.b(m.a(x)))),
            a=lambda: nn.Linear(20, 2, bias=False),
            b=lambda: nn.Linear(2, 64, bias=False),
        ),
        VECTORS,
    ),
    "several outputs": (wide(lambda m, x: {"y": plain(m, x), "all": [m.body(x)], "name": "n"}), VECTORS),
    "the same rows by einsum": (
        wide(lambda m, x: m.out(torch.tanh(m.body(x) + torch.einsum("bi,oi->bo", x, m.body.weight)))),
        VECTORS,
    ),
    "a parametrised distribution": (wide(lambda m, x: torch.distributions.Normal(plain(m, x), 1.0)), VECTORS),
    "a tower for pairs": (wide(lambda m, x: plain(m, x[::2]) @ plain(m, x[1::2]).T), VECTORS),
    "traced": (lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 3))), VECTORS),
    "experts": (SkippingExperts, VECTORS),
    "transposed in memory": (Transposed, VECTORS),
    "attention with masks": (
        lambda: Net(attends, attention=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 3)),
        SEQUENCES,
    ),
    "rotary attention": (Rotary, SEQUENCES),
    "rotary attention, longer later": (Rotary, LONGER),
    "U-Net": (UNet, IMAGES),
}
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "gradient in the forward pass": wide(lambda m, x: torch.func.jvp(lambda y: plain(m, y), (x,), (x,))[1]),
    "slice of the inputs": wide(lambda m, x: plain(m, x) + F.linear(x[:, :5], m.body.weight[:3, :5])),
    "two weights in one product": wide(
        lambda m, x: m.out(F.linear(x, m.body.weight + m.second.weight)), second=lambda: nn.Linear(20, 64)
    ),
    "forward instead of a call": wide(lambda m, x: m.out(torch.tanh(m.body.forward(x)))),
    "bilinear": wide(lambda m, x: m.out(m.pairs(x, x)), pairs=lambda: nn.Bilinear(20, 20, 64)),
    "bag of embeddings": wide(lambda m, x: plain(m, x) + m.bag(x.abs().long() % 9), bag=lambda: nn.EmbeddingBag(9, 3)),
    "scripted": wide(lambda m, x: m.out(m.part(x)), part=lambda: torch.jit.script(nn.Linear(20, 64))),
    "lazy": wide(lambda m, x: m.out(m.late(x)), late=lambda: nn.LazyLinear(64)),
}


@pytest.fixture(autouse=True)
def float64() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def numbers(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list) else []
    parts = [output.loc] if isinstance(output, torch.distributions.Normal) else parts
    return [x for part in parts for x in numbers(part)]


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([y.flatten() for y in numbers(model.eval()(x))])


def drift(now: Tensor, before: Tensor) -> float:
    return float((now - before).norm() / before.norm())


def learn(model: nn.Module, optimizer: Optimizer, x: Tensor, steps: int = 12) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        sum((y - 1).square().mean() for y in numbers(model(x))).backward()  # type: ignore[union-attr]
        optimizer.step()


@pytest.mark.parametrize("trained_first", [True, False])
@pytest.mark.parametrize("name", PROTECTED)
def test_these_models_keep_their_old_outputs(name: str, trained_first: bool) -> None:
    make, (old, new) = PROTECTED[name]
    model = make()
    memory = GPM(model, threshold=1.0)
    optimizer = memory.attach(AdamW(model.parameters(), lr=0.01, weight_decay=0.1))
    learn(model, optimizer, old, steps=8 if trained_first else 0)
    memory.consolidate(old)
    before, weights = outputs(model, old), copy.deepcopy(model.state_dict())
    learn(model, optimizer, new)
    assert drift(outputs(model, old), before) < EXACT
    assert any(not torch.equal(weights[name], now) for name, now in model.state_dict().items() if name in weights)
    memory.verify()


@pytest.mark.parametrize("name", REFUSED)
def test_these_models_are_refused_by_name(name: str) -> None:
    model = REFUSED[name]()
    with pytest.raises((UnsupportedError, ConsolidationError), match="'"):
        GPM(model, threshold=1.0).consolidate(VECTORS[0])


def other_rates(net: Any) -> Optimizer:
    return SGD(
        [{"params": [net.body.weight, net.out.weight]}, {"params": [net.body.bias, net.out.bias], "lr": 0.0}], lr=0.02
    )


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "a rate of zero for the biases": other_rates,
    "a weight without its bias": lambda net: SGD([net.body.weight], lr=0.02),
    "a bias without its weight": lambda net: SGD([net.body.bias], lr=0.02),
    "fused": lambda net: AdamW(net.parameters(), lr=0.01, fused=True),
    "a rate in a tensor": lambda net: SGD(net.parameters(), lr=torch.tensor(0.01), foreach=False),
    "upwards": lambda net: SGD(net.parameters(), lr=0.001, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_unusual_optimizers_keep_old_outputs(name: str) -> None:
    net, (old, new) = wide(plain)(), VECTORS
    memory = GPM(net, threshold=1.0)
    memory.consolidate(old)
    before = outputs(net, old)
    learn(net, memory.attach(OPTIMIZERS[name](net)), new)
    assert drift(outputs(net, old), before) < EXACT
    memory.verify()


def test_weights_that_are_not_numbers_any_more_are_no_success() -> None:
    net, (old, new) = wide(plain)(), VECTORS
    memory = GPM(net, threshold=1.0)
    memory.consolidate(old)
    optimizer = memory.attach(SGD(net.parameters(), lr=0.01))
    (plain(net, new).sum() * float("nan")).backward()
    optimizer.step()
    with pytest.raises(LeakError, match="nan"):
        memory.verify()


@pytest.mark.parametrize("kind", ["experts", "attention with masks", "rotary attention", "U-Net"])
def test_a_recalled_task_is_the_same_after_save_and_load(kind: str, tmp_path: Path) -> None:
    make, (old, new) = PROTECTED[kind]
    model = make()
    memory = GPM(model, threshold=0.9, recall=True)
    memory.consolidate(old)
    elsewhere = 1.7 * new - 0.3
    with memory.recall(0):
        before = outputs(model, elsewhere)
    learn(model, memory.attach(AdamW(model.parameters(), lr=0.01)), new)
    memory.save(tmp_path / "memory.safetensors")
    with GPM.load(tmp_path / "memory.safetensors", model).recall(0):
        assert drift(outputs(model, elsewhere), before) < EXACT
