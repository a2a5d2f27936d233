"""Uses of a weight that few examples or few outputs show, and changes that a loop makes unnoticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from remnant import GPM, ConsolidationError

OLD = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    2, 20, generator=torch.Generator().manual_seed(1)
)
NEW = torch.randn(30, 20, generator=torch.Generator().manual_seed(2)) + 1


class Net(nn.Module):
    """Two layers with room to learn, more parts, and a function that puts them together."""

    def __init__(self, use: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.use, self.body, self.out = use, nn.Linear(20, 64), nn.Linear(64, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.use(self, *inputs)


def plain(m: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return torch.as_tensor(m.out(torch.tanh(m.body(x if mask is None else x * mask))))


def learn(model: nn.Module, optimizer: Optimizer, x: Tensor = NEW, steps: int = 10) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(x)
        (output - 1).square().mean().backward()
        optimizer.step()


def change(now: Tensor, before: Tensor) -> float:
    return float(((now - before).norm() / before.norm()).detach())


def rare_path(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.body(x))
    return torch.as_tensor(m.out(h) + (x[:, :1] > 1) * F.linear(h.square(), m.out.weight))


SORTED = OLD[OLD[:, 0].argsort()]


@pytest.mark.parametrize("batches", [[SORTED], list(SORTED.split(20))], ids=["one batch", "fifteen batches"])
def test_a_leak_that_only_later_examples_show_is_refused(batches: list[Tensor]) -> None:
    with pytest.raises(ConsolidationError, match="'out'"):
        GPM(Net(rare_path), threshold=0.99).consolidate(batches)


def test_examples_of_all_batches_stand_for_the_task() -> None:
    memory = GPM(Net(plain))
    memory.consolidate([(OLD[:20] * 0 + number, torch.tensor(3)) for number in range(40)])
    examples, scalar = memory._verifier.witnesses[0].probe.examples
    assert len(examples[:, 0].unique()) > 4
    assert scalar == 3


def test_batches_of_other_shapes_are_not_mixed() -> None:
    memory = GPM(Net(lambda m, x: plain(m, x.mean(1))))
    memory.consolidate([OLD[:24].reshape(24 // length, length, 20) for length in (2, 3, 4)])
    assert memory._verifier.witnesses[0].probe.examples.shape == (8, 2, 20)


def narrow(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return plain(m, x) / (1 + 0.1 * m.out.weight.norm()), m.side(x.bfloat16()).float()


class ToBfloat16(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


@pytest.mark.parametrize("side", [ToBfloat16, lambda: nn.Linear(20, 3).bfloat16()], ids=["cast", "layer"])
def test_one_bf16_branch_does_not_hide_a_leak_elsewhere(side: Callable[[], nn.Module]) -> None:
    with pytest.raises(ConsolidationError, match=r"'out' \(Linear"):
        GPM(Net(narrow, side=side())).consolidate(OLD)


def autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = torch.tanh(m.body(x))
        return torch.as_tensor(m.out(h) + F.linear(h.square(), m.out.weight))


def test_the_rounding_of_autocast_does_not_hide_a_leak() -> None:
    with pytest.raises(ConsolidationError, match="'out'"):
        GPM(Net(autocast)).consolidate(OLD)


def test_a_bf16_branch_alone_is_no_leak() -> None:
    model = Net(lambda m, x: (plain(m, x), m.deep(m.side(x.bfloat16())).float().softmax(-1)), side=nn.Linear(20, 64))
    model.side.bfloat16()
    model.deep = nn.Linear(64, 3).bfloat16()
    GPM(model).consolidate(OLD)


def codes(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = m.body(x)
    return m.out(h), torch.cdist(h, m.table.weight).argmin(-1), m.table(torch.zeros(1).long())


def quantised(m: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(m.out(m.table(torch.cdist(m.body(x), m.table.weight).argmin(-1))))


@pytest.mark.parametrize(("use", "rows"), [(codes, 6), (quantised, 12)])
def test_the_nearest_row_of_a_table_is_no_lookup(use: Callable[..., Any], rows: int) -> None:
    with pytest.raises(ConsolidationError, match="'table'"):
        GPM(Net(use, table=nn.Embedding(rows, 64))).consolidate(OLD)


@pytest.mark.parametrize("head", ["random", "zero"])
def test_whole_numbers_that_hold_are_no_leak(head: str) -> None:
    model = Net(lambda m, x: (plain(m, x), plain(m, x).argmax(-1)))
    if head == "zero":
        nn.init.zeros_(model.out.weight)
        nn.init.zeros_(model.out.bias)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(OLD)
    assert memory.verify().tasks[0].drift == 0


class Merged(Net):
    """Adds its low-rank part to the weight in eval mode, as some adapters do."""

    merged = False

    def train(self, mode: bool = True) -> Merged:
        super().train(mode)
        if self.merged is mode:
            self.body.weight.data += (-1 if self.merged else 1) * (self.b.weight @ self.a.weight).detach()
            self.merged = not mode
        return self


@pytest.mark.parametrize("steps", [0, 5])
def test_a_weight_that_eval_computes_from_others_is_refused(steps: int) -> None:
    parts = {"a": nn.Linear(20, 2, bias=False), "b": nn.Linear(2, 64, bias=False)}
    model = Merged(lambda m, x: m.out(torch.tanh(m.body(x) + (0 if m.merged else m.b(m.a(x))))), **parts)
    memory = GPM(model, threshold=1.0)
    learn(model, memory.attach(AdamW(model.parameters(), lr=0.01)), steps=steps)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConsolidationError, match=r"'a'.*'b'"):
        memory.consolidate(OLD)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())


def test_a_layer_inside_vmap_is_refused_in_words() -> None:
    model = Net(lambda m, x: torch.vmap(lambda row: plain(m, row))(x))
    with pytest.raises(ConsolidationError, match=r"'body' is called inside a transform of torch\.func"):
        GPM(model).consolidate(OLD)


def test_large_outputs_of_old_tasks_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.audit.verification.BYTES", 2 * 8 * 3 * 8)  # float64 outputs of two tasks
    memory = GPM(Net(plain), threshold=0.5)
    for _ in range(4):
        memory.consolidate(OLD)
    assert [check.name for check in memory.verify().tasks] == ["task 2", "task 3"]


def test_an_input_that_consolidate_leaves_out_is_mentioned() -> None:
    class Masked(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return plain(self, x, mask)

    batch = OLD, torch.ones(300, 20), torch.zeros(300)
    with pytest.warns(UserWarning, match=r"forward takes more inputs \(mask\).*pass forward="):
        GPM(Masked(plain)).consolidate([batch])


@pytest.mark.parametrize("batch", [OLD, [(OLD, torch.zeros(300))], [(OLD, torch.zeros(300), "name")]])
def test_a_target_beside_the_input_is_not_mentioned(batch: Any, recwarn: pytest.WarningsRecorder) -> None:
    class Masked(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return plain(self, x, mask)

    GPM(Masked(plain)).consolidate(batch)
    GPM(Masked(plain)).consolidate([(OLD, OLD, OLD)], forward=lambda model, batch: model(*batch[:2]))
    GPM(nn.Sequential(nn.Linear(20, 64))).consolidate([(OLD, OLD, OLD)])
    assert not recwarn.list


@pytest.mark.parametrize("how", ["appended", "replaced"])
def test_a_parameter_that_joins_a_group_later_is_protected_too(how: str) -> None:
    model = Net(plain)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(OLD)
    optimizer = memory.attach(AdamW(model.body.parameters(), lr=0.01))
    if how == "appended":
        optimizer.param_groups[0]["params"].append(model.out.weight)
    else:
        optimizer.param_groups[0]["params"][0] = model.out.weight
    learn(model, optimizer)
    memory.verify()


def test_two_memories_of_one_model_are_refused() -> None:
    model = Net(plain)
    first, second = GPM(model), GPM(model)
    optimizers = [SGD(model.parameters(), lr=0.01) for _ in range(2)]
    first.attach(optimizers[0])
    with pytest.raises(ValueError, match="another memory"):
        second.attach(optimizers[1])
    first.detach()
    second.attach(optimizers[1])


def test_memories_of_other_weights_or_without_an_optimizer_are_no_conflict() -> None:
    model = Net(plain)
    body, out = GPM(model, protect=["body"]), GPM(model, protect=["out"])
    optimizers = [body.attach(SGD(model.body.parameters(), lr=0.01)), out.attach(SGD(model.out.parameters(), lr=0.01))]
    copied, twin = copy.deepcopy((model, body))
    twin.attach(SGD(copied.parameters(), lr=0.01))
    optimizers.clear()
    again = GPM(model, protect=["body"])
    again.attach(SGD(model.parameters(), lr=0.01))


def test_a_teacher_that_the_loop_averages_is_recalled() -> None:
    model = Net(lambda m, x: plain(m, x) + m.teacher(x), teacher=nn.Linear(20, 3).requires_grad_(False))
    memory = GPM(model, threshold=0.9, recall=True, exclude=["teacher"])
    optimizer = memory.attach(AdamW(model.parameters(), lr=0.01))
    memory.consolidate(OLD)
    with memory.recall(0):
        before = model(NEW).detach()
    learn(model, optimizer)
    model.teacher.weight.add_(1)
    with memory.recall(0):
        assert change(model(NEW), before) < 1e-5


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:Whether the memory covers")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_inputs_are_recorded(layout: torch.layout) -> None:
    model, x = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 3)), OLD * (torch.arange(20) % 3 == 0)
    memory = GPM(model, threshold=1.0)
    memory.consolidate([x[:100].to_sparse(layout=layout), x[100:].to_sparse(layout=layout)])
    before = model(x).detach()
    learn(model, memory.attach(AdamW(model.parameters(), lr=0.01)))
    assert change(model(x), before) < 1e-4


def test_a_refusal_names_the_layers_that_nothing_calls() -> None:
    model = Net(lambda m, x: F.linear(x, m.body.weight))
    with pytest.raises(ConsolidationError, match="'body', 'out'"):
        GPM(model).consolidate(OLD)


def test_a_copied_memory_tells_that_it_compares_no_outputs() -> None:
    memory = GPM(Net(plain))
    memory.consolidate(OLD)
    assert "No outputs were compared" not in str(memory.verify())
    assert "No outputs were compared" in str(copy.deepcopy(memory).verify())
