"""A recalled task has the outputs that it had when it was consolidated, for every input and under any optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_optimizers import OPTIMIZERS
from torch import Tensor, nn

from remnant import GPM, LeakError

ROUNDING = {torch.float32: 2e-4, torch.float64: 1e-11}


class ConvNet(nn.Module):
    """Plain, grouped and transposed convolutions, a norm, biases, one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, stride=2, groups=4)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False)
        self.fc = nn.Linear(4 * 16, 20)
        self.heads = nn.ModuleList(nn.Linear(20, 3) for _ in range(3))

    def forward(self, x: Tensor, task: int) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.up(F.relu(self.grouped(x)))).flatten(1)
        return self.heads[task](F.relu(self.fc(x)))


class TextNet(nn.Module):
    """Embeddings, attention, a layer that is used twice, and an output layer that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.places = nn.Embedding(6, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.twice = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor, task: int) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        h = h + self.attention(h, h, h)[0]
        return self.head(self.norm(self.twice(F.gelu(self.twice(h)))))[:, -1]


def images(task: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    y = torch.randint(0, 3, (64,), generator=generator)
    basis = torch.randn(6, 72, generator=generator)
    x = (torch.randn(64, 6, generator=generator) + 2 * F.one_hot(y, 6)) @ basis
    return x.view(64, 2, 6, 6).to(dtype), y


def texts(task: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randint(8 * task, 8 * task + 10, (64, 6), generator=generator)
    return x, x[:, 0]


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[..., tuple[Tensor, Tensor]], dict[str, Any]]] = {
    "convolutions": (ConvNet, images, {}),
    "norms per task": (ConvNet, images, {"norm": "per-task"}),
    "free biases and heads": (ConvNet, images, {"bias": "free", "exclude": ["heads.*"]}),
    "tied text": (TextNet, texts, {}),
    "own parts": (ConvNet, images, {"own_rank": 3}),
    "own parts of a text": (TextNet, texts, {"own_rank": 3}),
}


def forward_of(task: int) -> Callable[[nn.Module, Any], Tensor]:
    return lambda model, batch: model(batch[0] if isinstance(batch, list | tuple) else batch, task)


def train(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, task: int, steps: int = 12) -> float:
    model.train()
    for _ in range(steps):
        loss = F.cross_entropy(model(x, task), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


@torch.no_grad()
def recalled_outputs(model: nn.Module, memory: GPM, task: int, x: Tensor) -> Tensor:
    model.eval()
    with memory.recall(task):
        return model(x, task)


# The optimizer and the layers meet only in the step: every optimizer on one network, every network with momentum and decay.
SHORT = {
    *(("convolutions", optimizer, torch.float32) for optimizer in OPTIMIZERS),
    *((kind, "adamw", torch.float32) for kind in NETS),
    *((kind, "sgd nesterov decay", torch.float64) for kind in NETS),
}
CASES = [
    pytest.param(*case, marks=[] if case in SHORT else [pytest.mark.long])  # make fuzz tries all of them
    for case in product(NETS, OPTIMIZERS, (torch.float32, torch.float64))
]


@pytest.mark.parametrize(("kind", "optimizer", "dtype"), CASES, ids=str)
def test_a_recalled_task_never_changes(kind: str, optimizer: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, data, options = NETS[kind]
    model = make().to(dtype)
    memory = GPM(model, threshold=0.9, recall=True, **options)
    attached = memory.attach(OPTIMIZERS[optimizer](model.parameters()))
    elsewhere = [data(7 - task, dtype)[0] % 30 for task in range(3)]  # inputs that no task was trained on
    before = []
    for task in range(3):
        x, y = data(task, dtype)
        train(model, attached, x, y, task)
        memory.consolidate([(x, y)], forward=forward_of(task))
        before.append(recalled_outputs(model, memory, task, elsewhere[task]))
    weights = copy.deepcopy(model.state_dict())
    for task, outputs in enumerate(before):
        now = recalled_outputs(model, memory, task, elsewhere[task])
        assert outputs.std() > 1e-3
        assert (now - outputs).norm() <= ROUNDING[dtype] * outputs.norm()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def learnt(kind: str = "convolutions", tasks: int = 2, **more: Any) -> tuple[nn.Module, GPM, Any]:
    torch.manual_seed(0)
    make, data, options = NETS[kind]
    model = make()
    memory = GPM(model, threshold=0.8, recall=True, **{**options, **more})
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for task in range(tasks):
        x, y = data(task)
        train(model, optimizer, x, y, task, steps=30)
        memory.consolidate([(x, y)], forward=forward_of(task), recall=True)
    return model, memory, optimizer


@pytest.mark.parametrize("kind", NETS)
def test_training_the_recalled_network_pays_and_changes_no_earlier_task(kind: str) -> None:
    model, memory, _ = learnt(kind)
    optimizer = memory.attach(torch.optim.Adam(model.parameters(), lr=3e-3))
    (x0, _), (x, y) = NETS[kind][1](0), NETS[kind][1](1)
    old = recalled_outputs(model, memory, 0, x0)
    cost = memory.report().truncations[1]
    with memory.recalling():
        train(model, optimizer, x, y, 1, steps=30)
        model.eval()
        inside = model(x, 1).detach()
    torch.testing.assert_close(recalled_outputs(model, memory, 1, x), inside, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(recalled_outputs(model, memory, 0, x0), old, rtol=1e-4, atol=1e-4)
    assert float(F.cross_entropy(inside, y)) < cost.recalled_loss
    x2, y2 = NETS[kind][1](2)
    train(model, optimizer, x2, y2, 2, steps=5)
    torch.testing.assert_close(recalled_outputs(model, memory, 1, x), inside, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own_rank", [0, 2])
@pytest.mark.parametrize("crashes", [False, True])
def test_verify_compares_with_what_retraining_ended_with(own_rank: int, crashes: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3))
    memory = GPM(model, threshold=0.9, recall=True, own_rank=own_rank)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.3))
    x = torch.randn(30, 20)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()

    steps(5)
    memory.consolidate([x])
    with suppress(KeyboardInterrupt), memory.recalling():
        steps(20)
        if crashes:
            raise KeyboardInterrupt
    (task,) = memory.verify().tasks
    assert task.drift is not None
    assert task.drift < 1e-5


def test_the_cost_of_truncation_is_the_loss_before_and_after() -> None:
    model, memory, _ = learnt(tasks=1)
    x, y = images(0)
    (cost,) = memory.report().truncations
    model.eval()
    assert cost.loss == pytest.approx(F.cross_entropy(model(x, 0), y).item(), rel=1e-5)
    assert cost.recalled_loss == pytest.approx(
        float(F.cross_entropy(recalled_outputs(model, memory, 0, x), y)), rel=1e-5
    )
    assert f"{cost.recalled_loss:.4g} as recalled" in str(memory.report())


def test_the_recalled_state_dict_is_the_recalled_network() -> None:
    model, memory, _ = learnt("norms per task")
    x, _ = images(0)
    twin = ConvNet()
    twin.load_state_dict(memory.recalled(0))
    twin.eval()
    assert torch.equal(twin(x, 0), recalled_outputs(model, memory, 0, x))


def test_the_state_of_recall_is_saved(tmp_path: Any) -> None:
    model, memory, _ = learnt("norms per task")
    memory.save(tmp_path / "memory.safetensors")
    twin = copy.deepcopy(model)
    loaded = GPM.load(tmp_path / "memory.safetensors", twin)
    x, _ = images(0)
    assert torch.equal(recalled_outputs(twin, loaded, 0, x), recalled_outputs(model, memory, 0, x))
    assert loaded.report() == memory.report()
    guess, again = memory.which_task(x, forward=forward_of(0)), loaded.which_task(x, forward=forward_of(0))
    assert torch.equal(guess.task, again.task)


# Patches of noise look alike, so a convolution tells tasks apart less well than whole inputs do.
@pytest.mark.parametrize(("kind", "share"), [("convolutions", 0.6), ("tied text", 0.9)])
def test_the_inputs_name_their_task(kind: str, share: float) -> None:
    _, memory, _ = learnt(kind, tasks=3)
    for task in range(3):
        guess = memory.which_task(NETS[kind][1](task)[0], forward=forward_of(0))
        assert (guess.task == task).float().mean() > share
        assert 0 <= guess.confidence.min() <= guess.confidence.max() <= 1


def test_permutations_are_named_without_error() -> None:
    torch.manual_seed(0)
    images = torch.randn(300, 6) @ torch.randn(6, 40)
    orders = [torch.randperm(40) for _ in range(4)]
    memory = GPM(nn.Sequential(nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 2)), recall=True)
    for order in orders:
        memory.consolidate(images[:200, order])
    for task, order in enumerate(orders):
        guess = memory.which_task(images[200:, order])
        assert bool((guess.task == task).all())
    assert guess.confidence.median() > 0.9
    noise = memory.which_task(torch.randn(100, 40))
    assert noise.confidence.median() < 0.3


def test_a_recalled_task_is_only_for_reading() -> None:
    model, memory, optimizer = learnt()
    x, y = images(0)
    with memory.recall(0), pytest.raises(RuntimeError, match="read-only"):
        train(model, optimizer, x, y, 0, steps=1)
    with memory.recall(0), pytest.raises(RuntimeError, match="read-only"), memory.recall(1):
        pass
    with memory.recalling(), pytest.raises(RuntimeError, match=r"Leave the block of memory.recalling"):
        memory.consolidate([(x, y)], forward=forward_of(0))
    for task in (2, -1, "a"):
        with pytest.raises(IndexError, match="choose 0 to 1"):
            memory.recalled(task)  # type: ignore[arg-type]


def test_recall_must_be_asked_for() -> None:
    memory = GPM(nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match="recall=True"):
        memory.recall(0)
    with pytest.raises(ValueError, match="needs recall=True"):
        GPM(nn.Linear(4, 2), norm="per-task")
    with pytest.raises(RuntimeError, match="recall=True"):
        memory.consolidate(torch.randn(8, 4), recall=True)


def test_verify_proves_recall_on_any_batch_and_tells_when_it_is_broken() -> None:
    model, memory, optimizer = learnt("norms per task", unsupported="free")
    x, y = images(2)
    train(model, optimizer, x, y, 1, steps=5)
    elsewhere = [torch.randn(8, 2, 6, 6)]
    result = memory.verify(elsewhere, forward=forward_of(0), recall=True)
    assert {"task 0, recalled", "task 1, recalled"} <= {check.name for check in result.tasks}
    assert "task 1, recalled weights" in str(memory.verify(forward=forward_of(0), recall=True))
    with torch.no_grad():
        model.fc.weight += 10 * torch.randn_like(model.fc.weight)
    with pytest.raises(
        LeakError, match="Recalled tasks have moved"
    ):  # the share of the change is accepted, its size not
        memory.verify(elsewhere, tolerance=0.9, forward=forward_of(0), recall=True)


def test_recall_puts_free_tensors_back_in_a_frozen_model_and_leaves_caches_alone() -> None:
    torch.manual_seed(0)

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.out = nn.Linear(8, 16), nn.Linear(16, 3)
            self.register_buffer("cache", torch.zeros(0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if len(self.cache) < x.shape[1]:
                self.cache = torch.arange(x.shape[1]) / 10
            return self.out(torch.tanh(self.body(x) + self.cache[: x.shape[1], None]))

    model, x = Cached(), torch.randn(20, 4, 8)
    memory = GPM(model, threshold=0.9, exclude=["out"], recall=True)
    memory.consolidate(x)
    with memory.recall(0), torch.no_grad():
        before = model(x)
    model(torch.randn(2, 7, 8))
    with torch.no_grad():
        model.out.weight.mul_(2)
    model.requires_grad_(False)
    with memory.recall(0), torch.no_grad():
        assert torch.equal(model(x), before)
