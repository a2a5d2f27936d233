"""Any optimizer keeps W·M = W₀·M after every step, and still learns the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from remnant import GPM
from remnant.memory import StepProjector

Factory = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Factory] = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "sgd momentum": lambda p: SGD(p, lr=0.05, momentum=0.9),
    "sgd nesterov decay": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "sgd decay": lambda p: SGD(p, lr=0.05, weight_decay=5e-4),
    "adam": lambda p: Adam(p, lr=1e-3),
    "adam amsgrad decay": lambda p: Adam(p, lr=1e-3, amsgrad=True, weight_decay=1e-2),
    "adamw": lambda p: AdamW(p, lr=1e-3, weight_decay=0.05),
    "rmsprop": lambda p: RMSprop(p, lr=1e-3, momentum=0.5),
    "adagrad": lambda p: Adagrad(p, lr=1e-2),
}
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-10}


class Net(nn.Module):
    """Strided, grouped and plain convolutions, a norm, biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.fc = nn.Linear(8 * 9, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv1(x)))
        x = F.relu(self.conv2(x)).flatten(1)
        return self.head(F.relu(self.fc(x)))


def task(number: int, dtype: torch.dtype = torch.float32, size: int = 256) -> tuple[Tensor, Tensor]:
    """Five noisy classes, each task with its own rotation."""
    generator = torch.Generator().manual_seed(number)
    centres = 2 * torch.randn(5, 72, generator=generator)
    turn = torch.linalg.qr(torch.randn(72, 72, generator=generator))[0]
    y = torch.randint(0, 5, (size,), generator=generator)
    x = (centres[y] + 0.5 * torch.randn(size, 72, generator=generator)) @ turn
    return x.view(size, 2, 6, 6).to(dtype), y


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), y)


@torch.no_grad()
def loss_now(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(losses(model, x, y))


def train(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, steps: int) -> None:
    for step in range(steps):
        part = torch.arange(step * 32, step * 32 + 32) % len(x)
        losses(model, x[part], y[part]).backward()
        optimizer.step()
        optimizer.zero_grad()


def leaks(memory: GPM, before: dict[str, Tensor]) -> dict[str, float]:
    """‖(W−W₀)·M‖/‖W−W₀‖, computed without the library's own verify()."""
    parameters = dict(memory._model.named_parameters())
    found = {}
    for name, subspaces in memory.subspaces.items():
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        moved = (weight - before[f"{name}.weight"]).detach().flatten(1).double()
        if bias is not None:
            moved = torch.cat([moved, (bias - before[f"{name}.bias"]).detach().double()[:, None]], dim=1)
        parts = subspaces if isinstance(subspaces, list) else [subspaces]
        inside = [m @ s.basis.double() for m, s in zip(moved.chunk(len(parts)), parts, strict=True)]
        assert moved.norm() > 0, f"{name} learnt nothing"
        found[name] = float(torch.cat([i.flatten() for i in inside]).norm() / moved.norm())
    return found


def learn_two(make: Factory, dtype: torch.dtype, **options: Any) -> tuple[GPM, dict[str, Tensor], list[float]]:
    model = Net().to(dtype)
    memory = GPM(model, 0.9, **options)
    optimizer = make(model.parameters())
    memory.attach(optimizer)
    train(model, optimizer, *task(1, dtype), 60)
    memory.consolidate([task(1, dtype)])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = task(2, dtype)
    first = loss_now(model, x, y)
    train(model, optimizer, x, y, 200)
    return memory, before, [first, loss_now(model, x, y)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in OPTIMIZERS), ("sgd nesterov decay", torch.float64), ("adamw", torch.float64)],
    ids=str,
)
def test_two_hundred_steps_never_move_what_is_remembered(name: str, dtype: torch.dtype) -> None:
    memory, before, (first, last) = learn_two(OPTIMIZERS[name], dtype)
    assert max(leaks(memory, before).values()) <= LIMIT[dtype]
    assert last < 0.7 * first, "protected, but it learnt nothing"
    memory.verify(tolerance=LIMIT[dtype])


def small_network(sparse: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A network for optimizers with demands of their own, with inputs of an old task and of a new one."""
    if sparse:
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten()), torch.arange(8), torch.arange(20)
    layers = [nn.Linear(12, 16, bias=False), nn.ReLU(), nn.Linear(16, 3, bias=False)]
    return nn.Sequential(*layers), torch.randn(40, 3) @ torch.randn(3, 12), torch.randn(40, 12)


@pytest.mark.filterwarnings("ignore:Old outputs moved")
@pytest.mark.parametrize("kind", [kind for kind in vars(torch.optim).values() if isinstance(kind, type)])
def test_every_optimizer_of_torch_is_protected(kind: type[Optimizer]) -> None:
    if kind is Optimizer:
        pytest.skip("the base class")
    torch.manual_seed(0)
    model, old, new = small_network(sparse=kind is torch.optim.SparseAdam)
    memory = GPM(model, 0.9)
    memory.consolidate([old[:, None] if old.ndim == 1 else old])
    optimizer = memory.attach(kind(model.parameters(), lr=0.1))  # type: ignore[call-arg]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = losses(model, new[:, None] if new.ndim == 1 else new, torch.arange(len(new)) % 3)
        loss.backward()
        return loss

    first = float(closure())
    for _ in range(40):
        optimizer.step(closure)  # type: ignore[arg-type]
    assert float(closure()) < 0.99 * first, "protected, but it learnt nothing"
    assert memory.verify().worst < 1e-5


def test_projecting_the_gradient_alone_would_not_do() -> None:
    """The reason for the constraint after the step: AdamW moves weights inside the memory even with projected gradients."""
    model = Net()
    memory = GPM(model, 0.9)
    memory.consolidate([task(1)])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    x, y = task(2)
    for _ in range(20):
        losses(model, x, y).backward()
        memory.project()
        optimizer.step()
        optimizer.zero_grad()
    assert max(leaks(memory, before).values()) > 0.05
    memory.restore()
    assert max(leaks(memory, before).values()) <= 1e-4


@pytest.mark.parametrize(
    ("dtype", "line_search"), [(torch.float32, None), (torch.float32, "strong_wolfe"), (torch.float64, "strong_wolfe")]
)
def test_lbfgs_with_a_closure(dtype: torch.dtype, line_search: str | None) -> None:
    model = Net().to(dtype)
    memory = GPM(model, 0.9)
    memory.consolidate([task(1, dtype)])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05 if line_search is None else 1, line_search_fn=line_search)
    memory.attach(optimizer)
    x, y = task(2, dtype)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = losses(model, x, y)
        loss.backward()
        return loss

    first = loss_now(model, x, y)
    for _ in range(4):  # of twenty inner steps each
        optimizer.step(closure)
    assert loss_now(model, x, y) < 0.7 * first
    assert max(leaks(memory, before).values()) <= LIMIT[dtype]


@pytest.mark.parametrize("way", ["groups", "accumulation", "clipping", "several optimizers", "closure by keyword"])
def test_ways_of_stepping(way: str) -> None:
    model = Net()
    memory = GPM(model, 0.9)
    memory.consolidate([task(1)])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    convs = [*model.conv1.parameters(), *model.conv2.parameters(), *model.norm.parameters()]
    rest = [*model.fc.parameters(), *model.head.parameters()]
    optimizers: list[Optimizer] = [
        AdamW([{"params": convs, "lr": 3e-3}, {"params": rest, "lr": 1e-3, "weight_decay": 0.1}])
    ]
    if way == "several optimizers":
        optimizers = [AdamW(convs, lr=1e-3), SGD(rest, lr=0.05, momentum=0.9)]
    for optimizer in optimizers:
        assert memory.attach(optimizer) is optimizer
    x, y = task(2)
    first = loss_now(model, x, y)
    for step in range(400 if way == "accumulation" else 100):
        part = torch.arange(step * 32, step * 32 + 32) % len(x)
        if way == "closure by keyword":

            def closure(part: Tensor = part) -> Tensor:
                loss = losses(model, x[part], y[part])
                loss.backward()
                return loss

            optimizers[0].step(closure=closure)
        else:
            losses(model, x[part], y[part]).backward()
            if way == "accumulation" and step % 4:
                continue
            if way == "clipping":
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for optimizer in optimizers:
                optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert loss_now(model, x, y) < 0.8 * first
    assert max(leaks(memory, before).values()) <= 1e-4


def test_autocast_with_a_gradient_scaler() -> None:
    model = Net()
    memory = GPM(model, 0.9)
    memory.consolidate([task(1)])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = memory.attach(AdamW(model.parameters(), lr=1e-3))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = task(2)
    first = loss_now(model, x, y)
    for _ in range(60):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = losses(model, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert loss_now(model, x, y) < 0.7 * first
    assert max(leaks(memory, before).values()) <= 1e-4


@pytest.mark.parametrize("name", ["sgd", "sgd nesterov decay", "adamw"])
def test_bf16_weights_leak_no_more_than_their_rounding(name: str) -> None:
    """bf16 keeps 8 bits: after each step a weight is off by up to 2⁻⁸ of itself, and so is W·M."""
    memory, before, (first, last) = learn_two(OPTIMIZERS[name], torch.bfloat16)
    assert last < 0.8 * first
    memory.verify()
    for check in memory.verify(tolerance=1.0).layers:
        assert check.leak <= max(1e-4, check.rounding)
    assert max(leaks(memory, before).values()) < 0.1


def test_frozen_parts_hold_still_bit_for_bit() -> None:
    memory, before, _ = learn_two(OPTIMIZERS["adamw"], torch.float32, bias="freeze")
    now = dict(memory._model.named_parameters())
    for name in ("norm.weight", "norm.bias", "conv1.bias", "fc.bias"):
        assert torch.equal(now[name], before[name]), name


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_linear_networks_old_outputs_never_move_when_everything_is_remembered(optimizer: str) -> None:
    """With ε = 1, the outputs of task 1 stay the same, however long task 2 trains."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, 3))
    old, new = torch.randn(8, 20), torch.randn(64, 20) + 1
    memory = GPM(model, 1.0)
    memory.attach(trainer := OPTIMIZERS[optimizer](model.parameters()))
    memory.consolidate([old])
    before = model(old).detach()
    start = float(F.mse_loss(model(new), torch.ones(64, 3)))
    for _ in range(600):
        trainer.zero_grad()
        F.mse_loss(model(new), torch.ones(64, 3)).backward()
        trainer.step()
    assert float(F.mse_loss(model(new), torch.ones(64, 3))) < 0.5 * start
    assert torch.allclose(model(old), before, atol=1e-5)


@pytest.mark.parametrize(("bias", "moves"), [("augment", False), ("freeze", False), ("free", True)])
def test_a_free_bias_moves_old_outputs_although_no_weight_leaks(bias: str, moves: bool) -> None:
    """The reason the default treats a bias as the weight of a constant input."""
    model = nn.Linear(20, 3)
    old, new = torch.randn(8, 20), torch.randn(64, 20)
    memory = GPM(model, 1.0, bias=bias)
    memory.consolidate([old])
    optimizer = memory.attach(SGD(model.parameters(), lr=0.1, momentum=0.9))
    before = model(old).detach()
    for _ in range(100):
        optimizer.zero_grad()
        F.mse_loss(model(new), torch.ones(64, 3)).backward()
        optimizer.step()
    memory.verify()  # a free parameter is not a leak
    change = float((model(old) - before).norm() / before.norm())
    assert change > 0.1 if moves else change < 1e-5


@pytest.mark.parametrize("bias", ["augment", "freeze"])
def test_gradients_held_apart_are_projected_as_those_in_grad(bias: str) -> None:
    model = Net()
    memory = GPM(model, 0.9, bias=bias)
    memory.consolidate([task(1)])
    x, y = task(2)
    losses(model, x, y).backward()
    memory.project()
    apart = dict(
        zip(model.parameters(), torch.autograd.grad(losses(model, x, y), list(model.parameters())), strict=True)
    )
    before = {p: p.grad.clone() for p in model.parameters() if p.grad is not None}
    for parameter, gradient in StepProjector(memory).project(apart).items():
        assert torch.allclose(gradient, before[parameter], atol=1e-6)
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, before[parameter])
