"""Fuzzers of memories: damaged files, forged states with the right checksum, and interrupts at every line."""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fuzz import Counts, damaged, fuzzer, outcome
from test_interrupts import flat, half_made, learnt
from torch import Tensor, nn

from remnant import GPM
from remnant.files import write_file
from remnant.memory import codec


class Case(NamedTuple):
    """A model, the state of its memory, and a batch for it."""

    model: nn.Module
    state: dict[str, Any]
    batch: Tensor


@cache
def cases() -> list[Case]:
    """A network of a convolution, a norm and a head with recall, one with an embedding, and an empty memory."""
    torch.manual_seed(0)
    net, memory, _ = learnt(2)
    found = [Case(net, memory.state_dict(), torch.randn(12, 2, 4, 4))]
    for tasks, recall in ((2, True), (1, False), (0, False)):
        words = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
        memory = GPM(words, threshold={"start": 0.6, "step": 0.1}, recall=recall)
        for task in range(tasks):
            memory.consolidate(torch.arange(task, task + 4))
        if tasks and not recall:
            memory.subspaces["1"].weights = torch.full((memory.subspaces["1"].rank,), 0.5)  # type: ignore[union-attr]
        found.append(Case(words, memory.state_dict(), torch.arange(3, 8)))
    return found


def same(one: Any, other: Any) -> bool:
    return repr(flat(one)) == repr(flat(other))  # as text, because NaN is not equal to itself


def each_case(seed: int, count: int, attempt: Callable[[random.Random, Case, Path], str]) -> Counts:
    counts, dice = Counts(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            case = cases()[number % len(cases())]
            counts[outcome(lambda: attempt(dice, case, Path(folder) / "memory"))] += 1  # noqa: B023
    return counts


@fuzzer("memory: files", long=10_000)
def files(seed: int, count: int) -> Counts:
    """Files damaged at random: refused, or loaded as they were."""

    def attempt(dice: random.Random, case: Case, path: Path) -> str:
        path.write_bytes(damaged(b"".join(codec.pack(case.state)), dice))
        return "equal" if same(GPM.load(path, deepcopy(case.model)).state_dict(), case.state) else "silent"

    return each_case(seed, count, attempt)


@fuzzer("memory: forged states", long=3000)
def forged(seed: int, count: int) -> Counts:
    """States with one forged value and the right checksum: refused, or a memory that works and holds just these values."""

    def attempt(dice: random.Random, case: Case, path: Path) -> str:
        state, model = deepcopy(case.state), deepcopy(case.model)
        forge(state, dice)
        write_file(path, *codec.pack(state))
        memory = GPM.load(path, model)
        if same(memory.state_dict(), case.state):
            return "equal"
        return "unchecked" if is_sound(memory) and works(memory, model, case.batch) else "silent"

    return each_case(seed, count, attempt)


def _deep(levels: int) -> Any:
    return [_deep(levels - 1)] if levels else []


JUNK: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 10**30, -0.5, 0.5, 1e-300, float("nan"), float("inf"), -float("inf")),
    *("", "odd", "head", [], {}, [None], [-1], [1.5], ["odd"], {"odd": 1}, {"start": 0.5}, (1, 2), _deep(100)),
    *(
        torch.zeros(()),
        torch.zeros(0),
        torch.zeros(2),
        torch.ones(3, 3),
        torch.eye(6),
        torch.arange(9),
        torch.arange(4) == 1,
    ),
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a state with each of its keys."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield node, key
        yield from places(value)


def forge(state: dict[str, Any], dice: random.Random) -> None:
    """Changes a state in one place."""
    container, key = dice.choice(list(places(state)))
    value = container[key]
    match dice.choice(("junk", "lose", "extra", "change", "change", "change")):
        case "junk":
            container[key] = dice.choice(JUNK)
        case "lose":
            del container[key]
        case "extra" if isinstance(container, dict):
            container["odd"] = dice.choice((value, *JUNK))
        case "extra":
            container.insert(key, dice.choice((value, *JUNK)))
        case _:
            container[key] = changed(value, dice)


def changed(value: Any, dice: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, Tensor):
        return changed_tensor(value.clone(), dice)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return dice.choice((value + 1, value - 1, -value, 2 * value, value / 2, float(value), value * 1e308 * 10))
    if isinstance(value, str):
        return dice.choice((value + "x", value[1:], value.upper()))
    if isinstance(value, dict):
        return dice.choice((list(value), dict.fromkeys(value), dict(list(value.items())[1:])))
    return dice.choice((value[::-1], value + value, value[1:], {str(index): item for index, item in enumerate(value)}))


def changed_tensor(value: Tensor, dice: random.Random) -> Tensor:
    extremes = (torch.nan, torch.inf, -torch.inf, -1.0, 2.0, 1e30)
    kinds = (torch.float64, torch.float16, torch.int64, torch.bool)
    match dice.choice(("one", "all", "noise", "scale", "kind", "shape", "flip", "lose", "double")):
        case "one" if value.numel() and value.is_floating_point():
            value.view(-1)[dice.randrange(value.numel())] = dice.choice(extremes)
        case "all":
            value.fill_(dice.choice((0, 1)))
        case "noise" if value.is_floating_point():
            value += dice.choice((1e-12, 1e-3, 1)) * torch.randn(
                value.shape, generator=torch.Generator().manual_seed(0)
            )
        case "scale":
            value = (value * dice.choice((-1, 0.5, 1.01, 3))).to(value)
        case "kind":
            value = value.to(dice.choice(kinds))
        case "shape":
            value = value.reshape(dice.choice(([-1], [1, *value.shape], list(value.shape)[::-1])))
        case "flip" if value.ndim:
            value = value.flip(-1)
        case "lose" if value.ndim:
            value = value[..., 1:]
        case "double" if value.ndim:
            value = torch.cat([value, value], dim=-1)
    return value


def is_sound(memory: GPM) -> bool:
    """Whether counts agree with each other, and every basis has orthonormal columns."""
    layers = memory.report().layers
    counts = all(len(layer.added) == len(memory) and 0 <= layer.rank <= layer.capacity for layer in layers)
    held = [weight.subspaces for weight in memory._protection.weights]
    bases = [subspace.basis.double() for subspaces in held for subspace in subspaces]
    errors = [(basis.mT @ basis - torch.eye(basis.shape[1], dtype=torch.float64)).abs().sum() for basis in bases]
    weights = [subspace.weights for subspaces in held for subspace in subspaces]
    return counts and all(error < 1e-4 for error in errors) and all(((w >= 0) & (w <= 1)).all() for w in weights)


def works(memory: GPM, model: nn.Module, batch: Tensor) -> bool:
    """Whether every operation runs and leaves finite weights."""
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(2):
        model.train()
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    str(memory.report())
    for task in range(len(memory)) if memory._recall else ():
        with memory.recall(task):
            model(batch)
    try:
        memory.consolidate(batch)
    except ValueError as error:
        if "a threshold lies in (0, 1]" not in str(error):  # another step of the threshold may leave the range later
            raise
    memory.detach(optimizer)
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def interrupts(operation: str, count: int) -> Counts:
    counts = Counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tasks in (0, 1):
            points, found = half_made(operation, tasks, count)
            counts.update(equal=points - len(found), silent=len(found))
    return counts


@fuzzer("memory: interrupts of consolidate", long=1000)
def interrupts_of_consolidate(seed: int, count: int) -> Counts:
    """An exception at up to `count` lines, spread evenly: everything must be as before."""
    return interrupts("consolidate", count)


@fuzzer("memory: interrupts of load_state_dict", long=1000)
def interrupts_of_load(seed: int, count: int) -> Counts:
    """An exception at up to `count` lines, spread evenly: everything must be as before."""
    return interrupts("load_state_dict", count)
