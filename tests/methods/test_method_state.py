"""State is declared once: it is saved, restored and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.methods.base import Stateful
from remnant.models import Network, build
from small_options import OPTIONS, announced

SHAPE = (3, 19, 19)


def network(norm: str = "batch") -> Network:
    return build("alexnet", input_shape=SHAPE, classes=(3, 3), seed=1, width=2, norm=norm, dropout=(0.2, 0.5))


def learner(method: str, norm: str = "batch", lr: float = 0.05) -> Method:
    torch.manual_seed(0)
    return announced(METHODS[method](network(norm), lr=lr, **OPTIONS.get(method, {})))


def data(count: int = 40, seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(count, *SHAPE, generator=g), torch.randint(0, 3, (count,), generator=g))


def learn(method: Method, *, tasks: int = 2) -> None:
    """Learns all tasks but the last one to its end."""
    split = data()
    for task in range(tasks):
        method.start(task)
        method.on_epoch_start(0, 2, 5)
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
        if task < tasks - 1:
            method.finish(task, split)


def found(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that an object holds, however deep, with the way to it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield path, thing
    elif isinstance(thing, Mapping):
        for number, (key, value) in enumerate(thing.items()):
            yield from found(value, f"{path}[{key if isinstance(key, str) else number}]", seen)
    elif isinstance(thing, list | tuple | set):
        for number, value in enumerate(thing):
            yield from found(value, f"{path}[{number}]", seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from found(vars(thing), path, seen)


# A network with running statistics has all the state of one without them, for which a few methods are enough.
every_method = pytest.mark.parametrize(
    ("name", "norm"),
    [*((name, "running") for name in sorted(METHODS)), ("gpm", "batch"), ("hat", "batch"), ("ewc", "batch")],
)


def memory(tensor: Tensor) -> int:
    """Where a tensor's values are. A row of a matrix has the memory of the matrix."""
    return tensor.untyped_storage().data_ptr()


@every_method
def test_all_that_a_step_changes_is_put_back_after_a_warm_up_and_saved(name: str, norm: str) -> None:
    method, split = learner(name, norm), data()
    learn(method, tasks=1 if name == "multitask" else 2)
    tensors = dict(found(method, name, set()))
    before = {path: tensor.detach().clone() for path, tensor in tensors.items()}
    method.step(split.x[:8], split.y[:8])
    changed = {path: tensor for path, tensor in tensors.items() if not torch.equal(tensor.detach(), before[path])}
    assert len(changed) >= (2 if name == "analytic" else 6)  # two sums; else five layers and a head
    put_back = {memory(tensor) for tensor in method.step_tensors()}
    kept = {memory(tensor) for _, tensor in found(method.state_dict(), "", set())}
    assert [path for path, tensor in changed.items() if memory(tensor) not in put_back] == []
    assert [path for path, tensor in changed.items() if memory(tensor) not in kept] == []


@every_method
def test_every_tensor_of_a_method_is_kept_or_follows_from_what_is(name: str, norm: str) -> None:
    one, other = learner(name, norm), learner(name, norm)
    tasks = 1 if name == "multitask" else 2
    learn(one, tasks=tasks)
    other.start(tasks - 1)
    other.load_state_dict(one.state_dict())
    for method in (one, other):  # a step fills the caches
        torch.manual_seed(1)
        method.step(data().x[:8], data().y[:8])
    theirs = dict(found(other, name, set()))
    for path, tensor in found(one, name, set()):
        # The examples that `GPM.verify` compares are private and never saved; a run shows its stream again.
        if not any(part in path for part in ("[witnesses]", f"{name}[tasks]")):
            assert torch.equal(tensor.detach(), theirs[path].detach()), path


class Box(Stateful):
    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.keep("same", torch.zeros(2))
        self.keep("grown", torch.zeros(0, 2))
        self.keep("nested", {"a": [torch.zeros(3)], "count": 1})
        self.keep("big", torch.zeros(4), per_step=False)
        self.keep("free", torch.zeros(5), counted=False)


def test_loading_keeps_a_tensors_place_where_shapes_agree_and_copies_otherwise() -> None:
    one, other = Box(), Box()
    one.same += 1  # type: ignore[attr-defined]
    one.grown, one.nested = torch.ones(3, 2), {"a": [torch.ones(3)], "count": 2, "b": torch.ones(1)}
    same, inner = other.same, other.nested["a"][0]  # type: ignore[attr-defined]
    other.load_state_dict(one.state_dict())
    assert other.same is same
    assert other.nested["a"][0] is inner
    assert torch.equal(same, torch.ones(2))
    assert torch.equal(inner, torch.ones(3))
    assert other.nested["count"] == 2
    one.grown.zero_()
    assert torch.equal(other.grown, torch.ones(3, 2))


def test_bytes_and_step_tensors_follow_from_the_declarations() -> None:
    box = Box()
    assert box.nbytes == 4 * (2 + 0 + 3 + 4)
    assert [len(tensor) for tensor in box.step_tensors()] == [2, 0, 3, 5]
    box.keep("inner", Box())
    assert box.nbytes == 2 * 4 * 9
    assert [len(tensor) for tensor in box.step_tensors()] == [2, 0, 3, 5] * 2


def test_a_declaration_holds_for_the_code_it_was_made_for() -> None:
    class Same(METHODS["gpm"]):  # type: ignore[misc]
        pass

    class Mixin:
        def apply_gradients(self, gradients: Any) -> None: ...

    class Clipped(Mixin, METHODS["gpm"]):  # type: ignore[misc]
        pass

    class Again(Clipped):
        fast_form = "projected-sgd"

    class Doubled(METHODS["hat"]):  # type: ignore[misc]
        def logits(self, x: Tensor, task: int) -> Tensor:
            return 2 * super().logits(x, task)  # type: ignore[no-any-return]

    assert [kind.fast_form for kind in (Same, Clipped, Again)] == ["projected-sgd", None, "projected-sgd"]
    assert METHODS["hat"].logits_recordable
    assert not Doubled.logits_recordable
    fast = {name for name in METHODS if METHODS[name].fast_form == "projected-sgd"}
    assert fast == {"gpm", "sgp", "finetune", "multitask", "single-task"}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_nothing_that_a_task_leaves_behind_is_forgotten(name: str) -> None:
    method, split = learner(name), data()
    learn(method, tasks=1)
    before = dict(vars(method))
    method.finish(0, split)
    assert method.forgotten(before) == []


def test_a_method_that_forgets_to_keep_its_state_is_told_which() -> None:
    class Forgetful(Method):
        def refresh(self) -> None:
            self.derived = torch.zeros(2)

        def finish(self, task: int, train: Split) -> None:
            self.refresh()
            self.last = train.x[0]

    method = Forgetful(network())
    method.start(0)
    before = dict(vars(method))
    method.finish(0, data())
    assert method.forgotten(before) == ["last"]
