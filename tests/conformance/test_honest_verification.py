"""What a second hostile reading of the promises found: outputs that hide others, randomness, rounding, other paths."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LeakError

WIDTH = 24


class Net(nn.Module):
    """Two layers and a function that uses them."""

    def __init__(self, function: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), function
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def plain(net: Net, x: Tensor) -> Tensor:
    return net.second(net.first(x).relu())


def uncovered(net: Net, x: Tensor) -> Tensor:
    return net.second(net.first(x).relu() + F.linear(x.sin(), net.first.weight))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)


def train(model: nn.Module, memory: GPM, *inputs: Tensor, steps: int = 12, lr: float = 0.01) -> None:
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=lr))
    for _ in range(steps):
        optimizer.zero_grad()
        (model(*inputs).clamp(min=-100) - 1).square().mean().backward()
        optimizer.step()
    memory.detach(optimizer)


@pytest.mark.parametrize("value", [-1e4, -1e9, torch.finfo(torch.float32).min, 1e6])
def test_masked_outputs_hide_no_uncovered_use(value: float) -> None:
    net = Net(lambda net, x: uncovered(net, x).masked_fill(torch.arange(WIDTH) >= 3, value))
    with pytest.raises(ConsolidationError, match="'first'"):
        GPM(net, 1.0).consolidate(torch.randn(6, WIDTH))


def test_masked_outputs_hide_no_drift() -> None:
    net = Net(lambda net, x: plain(net, x).masked_fill(torch.arange(WIDTH) >= 3, -1e9))
    memory, old = GPM(net, 0.3), torch.randn(6, WIDTH)
    memory.consolidate(old)
    before = net(old).detach()[:, :3]
    train(net, memory, torch.randn(6, WIDTH))
    moved = float((net(old).detach()[:, :3] - before).norm() / before.norm())
    with pytest.warns(UserWarning, match="Old outputs moved"):
        result = memory.verify([old])
    assert result.tasks[-1].drift == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize("size", [1e4, 1e5, 1e6])
def test_one_large_example_hides_no_uncovered_use(size: float) -> None:
    with pytest.raises(ConsolidationError, match="'first'"):
        GPM(Net(uncovered), 1.0).consolidate(torch.randn(6, WIDTH) * torch.tensor([size, 1, 1, 1, 1, 1])[:, None])


@pytest.mark.parametrize("stays_on", [True, False])
def test_dropout_that_stays_on_in_eval_mode_is_reported(stays_on: bool) -> None:
    net = Net(lambda net, x: net.second(F.dropout(net.first(x).relu(), 0.3, training=stays_on)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GPM(net, 1.0).consolidate(torch.randn(6, WIDTH))
    assert any("random in eval mode" in str(warning.message) for warning in caught) == stays_on


class Conditional(Net):
    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        return plain(self, x if condition is None else x * condition)


@pytest.mark.parametrize(("second", "warned"), [(torch.ones(6, WIDTH), True), (torch.arange(6), False)])
def test_a_second_tensor_that_may_be_an_input_is_reported(second: Tensor, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GPM(Conditional(plain), 1.0).consolidate([(torch.randn(6, WIDTH), second)])
    assert any("condition" in str(warning.message) for warning in caught) == warned


@pytest.mark.parametrize("recalling", [True, False])
def test_changed_code_is_found_after_a_task_is_trained_as_it_is_recalled(recalling: bool) -> None:
    net = Net(lambda net, x: plain(net, x) / (1 + net.calls))
    memory, old = GPM(net, 0.95, recall=True), torch.randn(6, WIDTH)
    memory.consolidate(old)
    if recalling:
        with memory.recalling():
            train(net, memory, old, steps=3)
    train(net, memory, torch.randn(6, WIDTH))
    memory.verify(recall=True)
    net.calls = 1
    with pytest.raises(LeakError, match="other than a tensor's value has changed"):
        memory.verify(recall=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_in_a_deep_network_is_no_uncovered_use(dtype: torch.dtype) -> None:
    layers = [part for _ in range(8) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 4)).to(dtype)
    memory = GPM(model, 0.9999)
    old, new = (torch.randn(6, WIDTH, dtype=dtype) for _ in range(2))
    memory.consolidate(old)
    train(model, memory, new, steps=40, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old outputs may well drift
        assert memory.verify().worst < 1e-3


def test_batch_statistics_of_the_kept_examples_are_no_drift() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.ReLU(), nn.Linear(WIDTH, 4)
    )
    memory, old = GPM(model, 1.0), [torch.randn(4, WIDTH) for _ in range(4)]
    memory.consolidate(old)
    train(model, memory, torch.randn(4, WIDTH), steps=24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept, batches = memory.verify(old).tasks
    assert kept.drift is None
    assert batches.drift is not None
    assert batches.drift < 1e-5


@pytest.mark.parametrize("fixed", [False, True], ids=["buffer", "fixed parameter"])
def test_verify_names_state_that_only_given_batches_read(fixed: bool) -> None:
    def with_bank(net: Net, x: Tensor) -> Tensor:
        return plain(net, x) + (x[:, :1] > 50) * net.bank

    net = Net(with_bank)
    if fixed:
        net.bank = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
    else:
        net.register_buffer("bank", torch.ones(WIDTH))
    old = torch.randn(100, WIDTH)
    old[57, 0] = 99.0  # the only example that reads it, and none of those that the memory keeps
    memory = GPM(net, 0.9999999)
    memory.consolidate([old])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.verify([old])
    with torch.no_grad():
        net.bank += 0.5
    memory.verify()  # cannot know
    memory.verify([old[:50]])
    with pytest.raises(LeakError, match="'bank'"):
        memory.verify([old[:50], old[50:]])


def test_verify_finds_an_uncovered_use_on_a_path_that_only_given_batches_take() -> None:
    net = Net(lambda net, x: uncovered(net, x) if x.shape[1] > 6 else plain(net, x)).double()
    shared = torch.randn(4, WIDTH).double()
    old = [(torch.randn(8, 4).double() @ shared).reshape(shape) for shape in ((2, 4, WIDTH), (1, 8, WIDTH))]
    memory = GPM(net, 1.0)
    memory.consolidate(old)
    train(net, memory, torch.randn(2, 4, WIDTH).double())
    memory.verify()
    with pytest.raises(LeakError, match="'first'"):
        memory.verify(old)


def test_recalled_copies_state_that_is_no_tensor() -> None:
    class WithExtra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    model = nn.Sequential(WithExtra(WIDTH, 4))
    memory = GPM(model, 0.9, recall=True)
    memory.consolidate(torch.randn(6, WIDTH))
    model.load_state_dict(memory.recalled(0))


def test_a_layer_may_run_in_inference_mode_and_outside_it() -> None:
    @torch.inference_mode()
    def hidden(net: Net, x: Tensor) -> Tensor:
        return net.first(x)

    net = Net(lambda net, x: net.second(net.first(x) + hidden(net, x).clone()))
    added = GPM(net, 1.0).consolidate(torch.randn(40, WIDTH))
    assert added["first"] == WIDTH + 1


def test_earlier_steps_of_a_batch_that_is_a_sequence_are_no_drift() -> None:
    """The last kept examples depend on the first ones, and never were one sequence."""
    net = Net(lambda net, x: net.second((3 * net.first(x).relu().cumsum(0)).sin()))
    memory, old = GPM(net, 1.0), [torch.randn(4, WIDTH) for _ in range(4)]
    memory.consolidate(old)
    train(net, memory, torch.randn(4, WIDTH), steps=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept, batches = memory.verify(old).tasks
    assert kept.drift is None
    assert batches.drift is not None
    assert batches.drift < 1e-5


def test_outputs_that_are_huge_or_true_and_false_are_compared() -> None:
    class Masked(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            logits = plain(self, x)
            return 1e6 * logits, logits > 0

    net, x = Masked(plain), torch.randn(6, WIDTH)
    memory = GPM(net, 1.0)
    memory.consolidate(x)
    assert all((task.drift or 0) < 1e-5 for task in memory.verify(x).tasks)


def test_a_model_that_returns_no_tensors_is_not_blamed_on_the_loader() -> None:
    class Silent(Net):
        def forward(self, x: Tensor) -> str:  # type: ignore[override]
            plain(self, x)
            return "done"

    memory = GPM(Silent(plain), 0.99)
    with pytest.warns(UserWarning, match="could not be tested"):
        memory.consolidate(torch.randn(6, WIDTH))
    with pytest.raises(ValueError, match="returns no tensors"):
        memory.verify(torch.randn(6, WIDTH))
    with pytest.raises(ValueError, match="no batches with examples"):
        memory.verify([torch.randn(0, WIDTH)])


def test_examples_are_also_kept_from_later_batches_that_are_padded_to_another_length() -> None:
    def kept_from(*batches: Tensor) -> list[int]:
        memory = GPM(Net(plain), 0.9)
        memory.consolidate(list(batches))
        return list(memory._verifier.witnesses[0].probe.examples.shape)

    series = [torch.randn(4, length, WIDTH) for length in (3, *[5] * 3, *[7] * 8, *[9] * 12)]
    lengths = {kept_from(*series[:count])[1] for count in range(1, len(series))}
    assert len(lengths) > 1, "the first batch was always kept"
    assert kept_from(series[0][:1], series[1]) == [4, 5, WIDTH]
    assert kept_from(series[0], series[1][:1]) == [4, 3, WIDTH]
