"""Attacks on recall, own parts and soft directions that once moved an old task unseen, raised a false alarm or lost state."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant import GPM, LeakError

OTHER = torch.randn(9, 16, generator=torch.Generator().manual_seed(99))
pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")


def inputs(seed: int, count: int = 6) -> Tensor:
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int = 6) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), torch.ones(len(x), 4, dtype=x.dtype)).backward()
        optimizer.step()


def two_tasks(model: nn.Module | None = None, **options) -> tuple[nn.Module, GPM, torch.optim.Optimizer]:
    model = model or network()
    memory = GPM(model, threshold=1.0, recall=True, **options)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = memory.attach(torch.optim.SGD(trained, lr=0.05, momentum=0.9))
    for task in range(2):
        train(model, optimizer, inputs(task))
        memory.consolidate([inputs(task)])
    return model, memory, optimizer


@torch.no_grad()
def recalled(model: nn.Module, memory: GPM, task: int) -> Tensor:
    with memory.recall(task):
        return model(OTHER).clone()


# What may not happen while an old task is in place


def test_a_recalled_task_is_read_only_for_the_memory_too():
    model, memory, _ = two_tasks()
    before = recalled(model, memory, 1)
    state = memory.state_dict()
    forbidden = (
        lambda: memory.consolidate([inputs(4)]),
        lambda: memory.recalling().__enter__(),
        memory.restore,
        memory.verify,
        lambda: memory.load_state_dict(state),
    )
    for call in forbidden:
        with memory.recall(0), pytest.raises(RuntimeError, match="A recalled task is read-only"):
            call()
    assert len(memory) == 2
    memory.verify(recall=True)
    torch.testing.assert_close(recalled(model, memory, 1), before)


def test_a_memory_is_not_saved_or_copied_while_a_task_is_trained_as_recalled(tmp_path: Path):
    model, memory, optimizer = two_tasks()
    state = memory.state_dict()
    forbidden = (
        lambda: memory.save(tmp_path / "m.safetensors"),
        lambda: copy.deepcopy((model, memory, optimizer)),
        lambda: memory.load_state_dict(state),
    )
    with memory.recalling():
        for call in forbidden:
            with pytest.raises(RuntimeError, match=r"Leave the block of memory\.recalling"):
                call()
    assert not any(tmp_path.iterdir())


# What a block of recalling() may not hide, lose or overwrite


def test_half_a_round_of_optimizers_inside_recalling_moves_no_old_task():
    model = network()
    memory = GPM(model, threshold=1.0, recall=True)
    groups = ([p for p in model.parameters() if (p.ndim > 1) == matrices] for matrices in (True, False))
    optimizers = [memory.attach(torch.optim.AdamW(group, lr=2e-2)) for group in groups]

    def step(x: Tensor, stepping: list[torch.optim.Optimizer]) -> None:
        model.zero_grad()
        F.mse_loss(model(x), torch.ones(6, 4)).backward()
        for optimizer in stepping:
            optimizer.step()

    for task in range(2):
        for _ in range(5):
            step(inputs(task), optimizers)
        memory.consolidate([inputs(task)])
    before = recalled(model, memory, 0)
    with memory.recalling():
        step(inputs(1), optimizers)
        step(inputs(1), optimizers[:1])
    memory.verify(recall=True)
    torch.testing.assert_close(recalled(model, memory, 0), before)


@pytest.mark.parametrize("where", ["before", "inside"])
def test_a_change_past_the_memory_is_undone_by_recalling(where: str):
    model, memory, _ = two_tasks()
    before = recalled(model, memory, 0)
    if where == "before":
        model[2].weight.data.add_(0.01 * torch.randn(20, 20))
        with pytest.raises(LeakError):
            memory.verify()
    with memory.recalling():
        if where == "inside":
            train(model, torch.optim.SGD(model.parameters(), lr=0.02), inputs(1), 2)  # not attached
    memory.verify(recall=True)
    torch.testing.assert_close(recalled(model, memory, 0), before)


@pytest.mark.parametrize("options", [{"exclude": ["4"]}, {"own_rank": 3}, {"bias": "free"}], ids=str)
def test_recalling_is_refused_once_the_next_task_has_begun(options: dict):
    model, memory, optimizer = two_tasks(**options)
    before = recalled(model, memory, 1)
    train(model, optimizer, inputs(3), 20)
    plain = model(OTHER).detach()
    with pytest.raises(RuntimeError, match=r"The next task has begun: .* has changed since the last consolidate"):
        memory.recalling().__enter__()
    assert torch.equal(model(OTHER), plain)
    torch.testing.assert_close(recalled(model, memory, 1), before)


def test_a_refused_recalling_leaves_own_parts_alone():
    model, memory, _ = two_tasks(own_rank=3)
    before = recalled(model, memory, 1)
    with memory.recalling(), pytest.raises(RuntimeError, match="do not nest it"):
        memory.recalling().__enter__()
    torch.testing.assert_close(recalled(model, memory, 1), before)

    model = network()
    memory = GPM(model, recall=True, own_rank=3)
    train(model, memory.attach(torch.optim.SGD(model.parameters(), lr=0.05)), inputs(0))
    plain = model(OTHER).detach()
    with pytest.raises(RuntimeError, match="Consolidate one"):
        memory.recalling().__enter__()
    assert torch.equal(model(OTHER), plain)


# Loading


class WithFixed(nn.Module):
    """A fixed layer, or a buffer, before two layers that train."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "layer":
            self.fixed = nn.Linear(16, 16).requires_grad_(False)
        else:
            self.register_buffer("table", torch.randn(16))
        self.first, self.last = nn.Linear(16, 20), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fixed(x)) if self.kind == "layer" else x + self.table
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize("kind", ["layer", "buffer"])
def test_a_memory_knows_the_fixed_tensors_of_its_model_again(kind: str, tmp_path: Path):
    torch.manual_seed(0)
    model, memory, _ = two_tasks(WithFixed(kind), own_rank=2)
    before = recalled(model, memory, 0)
    memory.save(tmp_path / "m.safetensors")

    torch.manual_seed(7)
    right = WithFixed(kind)
    loaded = GPM.load(tmp_path / "m.safetensors", right)  # own_rank adds parameters, so the weights come second
    right.load_state_dict(model.state_dict())
    loaded.verify()
    assert torch.equal(recalled(right, loaded, 0), before)

    wrong = WithFixed(kind)
    loaded = GPM.load(tmp_path / "m.safetensors", wrong)
    trained = {name: value for name, value in model.state_dict().items() if not name.startswith(("fixed", "table"))}
    wrong.load_state_dict(trained, strict=False)
    with pytest.raises(LeakError, match="fixed parameters that the forward pass reads have changed"):
        loaded.verify()


def test_what_fails_adds_no_own_parts(tmp_path: Path):
    model = network()
    with pytest.raises(ValueError, match="a threshold lies in"):
        GPM(model, threshold=97, recall=True, own_rank=8)
    assert not any("own_part" in name for name in model.state_dict())
    _, memory, _ = two_tasks(own_rank=3)
    memory.save(tmp_path / "m.safetensors")
    narrower = nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))
    with pytest.raises(ValueError, match="belongs to another model"):
        GPM.load(tmp_path / "m.safetensors", narrower)
    assert not any("own_part" in name for name in narrower.state_dict())


def test_a_state_with_another_own_rank_is_refused_in_a_sentence():
    _, memory, _ = two_tasks(own_rank=2)
    with pytest.raises(ValueError, match="was made with own_rank=2, and this one with 0"):
        GPM(network(), threshold=1.0, recall=True).load_state_dict(memory.state_dict())


# Steps and outputs


def test_a_large_drift_is_shown_where_rounding_looks_like_batch_statistics():
    model = network()
    memory = GPM(model, threshold=0.999)
    memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    memory.consolidate([inputs(0)])
    for parameter in model.parameters():
        parameter.data.add_(100 * torch.randn_like(parameter))
    memory.restore()
    with pytest.warns(UserWarning, match="Old outputs moved by"):
        (task,) = memory.verify().tasks
    assert task.drift > 1


def test_clipping_scales_soft_directions_once():
    moved = []
    for clip in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 20, bias=False), nn.ReLU(), nn.Linear(20, 4, bias=False))
        memory = GPM(model, soft=3.0)
        memory.consolidate([inputs(0)])
        optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        for x in (inputs(4), inputs(5)):
            optimizer.zero_grad()
            F.mse_loss(model(x), torch.ones(6, 4)).backward()
            if clip:
                memory.clip_grad_norm_(1e9)
            optimizer.step()
        moved.append(model[0].weight.detach().clone())
    assert bool((memory.subspaces["0"].weights < 1).any())
    torch.testing.assert_close(*moved)


def test_verify_in_inference_mode_leaves_the_next_step_possible():
    model, memory, optimizer = two_tasks()
    with torch.inference_mode():
        memory.verify()
    train(model, optimizer, inputs(2))
    memory.verify()


def test_full_layers_of_a_model_that_became_double_are_no_leak():
    model = network()
    memory = GPM(model, threshold=1.0, recall=True)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    train(model, optimizer, inputs(0, 30))
    memory.consolidate([inputs(0, 30)])
    model.double()
    train(model, optimizer, inputs(1).double(), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory.verify()


# Own parts


def test_own_parts_are_trained_by_optimizers_of_single_parameters_or_the_first_step_is_refused():
    model = network()
    memory = GPM(model, recall=True, own_rank=2)
    optimizers = [memory.attach(torch.optim.SGD([p], lr=0.1)) for p in model.parameters()]
    F.mse_loss(model(inputs(0)), torch.ones(6, 4)).backward()
    for optimizer in optimizers:
        optimizer.step()

    model = network()
    memory = GPM(model, recall=True, own_rank=2)
    without = [p for name, p in model.named_parameters() if "own_part" not in name]
    optimizer = memory.attach(torch.optim.SGD(without, lr=0.1))
    with pytest.raises(ValueError, match=r"trains '0' but not its own part"):
        optimizer.step()


def test_the_own_part_of_a_transposed_convolution_takes_its_output_size():
    class Upscaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 6, 3, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x, output_size=(12, 12))

    model = Upscaling()
    before = model(torch.ones(1, 4, 5, 5))
    GPM(model, recall=True, own_rank=2)
    assert torch.equal(model(torch.ones(1, 4, 5, 5)), before)
    model.up.own_part.up.weight.data.fill_(1.0)
    assert not torch.equal(model(torch.ones(1, 4, 5, 5)), before)


def test_compiled_code_from_before_the_memory_uses_the_own_parts():
    model = network()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    compiled(inputs(0)).sum().backward()
    GPM(compiled, recall=True, own_rank=8)
    model[0].own_part.up.weight.data.fill_(0.1)
    assert torch.equal(compiled(inputs(0)), model(inputs(0)))


# Sentences instead of tracebacks


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda memory: memory.which_task([]), "at least one example"),
        (lambda memory: memory.which_task(torch.zeros(0, 16)), "at least one example"),
        (lambda memory: memory.restore({}), "restore takes a copy of the memory's model, not a dict"),
        (lambda memory: memory.verify(torch.zeros(0, 16)), "no batches with examples"),
        (lambda memory: memory.verify({5: [inputs(0)]}), "There is no task 5: choose 0 to 1"),
        (lambda memory: memory.consolidate([inputs(3)], recall="x"), "recall='x': pass True, or a function"),
        (lambda memory: memory.verify(tolerance="a"), "tolerance='a': it must be a number"),
    ],
    ids=["no batch", "empty batch", "state dict", "empty tensor", "unknown task", "recall", "tolerance"],
)
def test_bad_input_is_refused_in_a_sentence(call, says: str):
    _, memory, _ = two_tasks()
    with pytest.raises((ValueError, TypeError), match=says):
        call(memory)


def test_a_new_head_that_has_not_been_trained_does_not_stop_recalling():
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = nn.Linear(16, 8), nn.ModuleList([nn.Linear(8, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return self.heads[0](torch.relu(self.body(x)))

    model = Heads()
    memory = GPM(model, recall=True, exclude=["heads.*"])
    memory.consolidate([inputs(0)])
    model.heads.append(nn.Linear(8, 4))
    with memory.recalling():
        pass


def test_marks_of_soft_gradients_do_not_outlive_their_step():
    model = nn.Sequential(nn.Linear(16, 20, bias=False), nn.ReLU(), nn.Linear(20, 4, bias=False))
    memory = GPM(model, soft=3.0)
    memory.consolidate([inputs(0)])
    gradient, norms = torch.randn(20, 16), []
    model[0].weight.grad = torch.zeros(20, 16)
    for _ in range(3):
        model[0].weight.grad.data.copy_(gradient)  # which no version counter sees
        memory.project()
        norms.append(float(model[0].weight.grad.norm()))
    assert norms[0] == norms[1] == norms[2] < float(gradient.norm())


def test_own_parts_added_to_an_attached_optimizer_before_its_first_step_count():
    model = network()
    memory = GPM(model, recall=True, own_rank=2)
    first, rest = [model[0].weight], [p for p in model.parameters() if p is not model[0].weight]
    optimizer = memory.attach(torch.optim.SGD(first, lr=0.1))
    optimizer.add_param_group({"params": rest})
    F.mse_loss(model(inputs(0)), torch.ones(6, 4)).backward()
    optimizer.step()
