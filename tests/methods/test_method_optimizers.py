"""A run's optimizer: any of them trains, resumes to the same bits, and moves nothing that GPM remembers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from remnant.accelerated.cuda_graph import CapturedSteps
from remnant.accelerated.manual_backward import is_linear_chain
from remnant.data import Split
from remnant.methods import METHODS, OPTIMIZERS, Finetune, GradientProjection, Method
from remnant.models import Network, build
from remnant.options import OptionError, options_of
from remnant.training import EagerSteps, RandomState, run_to_completion
from small_options import OPTIONS, announced

CASES: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"weight_decay": 0.01},
    "adamw": {"weight_decay": 0.1, "betas": [0.8, 0.99]},
    "rmsprop": {"momentum": 0.5},
}
TORCH: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def network(classes: Any = (3, 3), **options: Any) -> Network:
    return build("mlp", input_shape=(12,), classes=classes, seed=7, hidden=(10, 9), **options)


def learner(method: str, optimizer: str, lr: float = 0.01, **options: Any) -> Method:
    torch.manual_seed(0)
    made = announced(METHODS[method](network(), lr=lr, **OPTIONS.get(method, {})))
    made.use_optimizer(optimizer, **(options or CASES[optimizer]))
    return made


def data(seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(40, 12, generator=g), torch.randint(0, 3, (40,), generator=g))


def learn(method: Method, split: Split, epochs: int = 1) -> None:
    for epoch in range(epochs):
        method.on_epoch_start(epoch, epochs, 5)
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])


def test_every_optimizer_has_a_case() -> None:
    assert CASES.keys() == set(OPTIMIZERS)
    for name, options in CASES.items():
        assert options.keys() <= options_of(OPTIMIZERS[name]).keys()


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_torch(name: str) -> None:
    method, split = learner("finetune", name), data()
    theirs = network()
    plain = TORCH[name]([*theirs.hidden.parameters(), *theirs.heads[0].parameters()], lr=0.01, **CASES[name])
    method.start(0)
    learn(method, split, epochs=3)
    for _ in range(3):
        for part in torch.arange(40).split(8):
            plain.zero_grad()
            F.cross_entropy(theirs(split.x[part], 0), split.y[part]).backward()
            plain.step()
    for ours, expected in zip(method.network.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-6)
        assert ours.grad is None


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["gpm", "hat", "er", "owm"])
def test_a_run_resumes_to_the_same_bits_in_the_middle_of_a_task(method: str, name: str) -> None:
    one, other = learner(method, name), learner(method, name)
    one.start(0)
    learn(one, data())
    one.finish(0, data())
    one.start(1)
    learn(one, data(1))
    other.start(1)
    other.load_state_dict(_copied(one.state_dict()))
    for each in (one, other):
        torch.manual_seed(3)
        learn(each, data(1))
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)


def _copied(node: Any) -> Any:
    if isinstance(node, torch.Tensor):
        return node.detach().clone()
    if isinstance(node, dict):
        return {key: _copied(value) for key, value in node.items()}
    return [_copied(value) for value in node] if isinstance(node, list) else node


@pytest.mark.parametrize("name", CASES)
def test_no_optimizer_moves_what_is_remembered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for exact in (True, False):
        method = learner("gpm", name)
        assert isinstance(method, GradientProjection)
        method.start(0)
        learn(method, data(), epochs=2)
        method.finish(0, data())
        if not exact:
            monkeypatch.setattr(method.projector, "restore", lambda: None)
        method.start(1)
        learn(method, data(1), epochs=2)
        worst = method.memory.verify(tolerance=10.0).worst
        assert worst < 1e-5 if exact else worst > 1e-5


@pytest.mark.parametrize("method", ["gpm", "finetune", "ewc"])
def test_sgd_without_momentum_takes_the_plain_steps(method: str) -> None:
    plain, chosen = learner(method, "sgd"), learner(method, "sgd", momentum=0.0, weight_decay=0.0)
    plain._make_optimizer, plain.uses_plain_sgd = None, True
    for each in (plain, chosen):
        each.start(0)
        learn(each, data())
        each.on_epoch_end()
    for a, b in zip(plain.network.parameters(), chosen.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_its_state_exists_before_the_first_step_and_starts_fresh_in_every_task(name: str) -> None:
    method = learner("finetune", name)
    before = [p.detach().clone() for p in method.network.parameters()]
    for task in range(2):
        method.start(task)
        state = method.optimizer_state
        assert state
        assert all(not tensor.any() for tensor in state)
        if task == 0:
            assert all(torch.equal(a, b) for a, b in zip(before, method.network.parameters(), strict=True))
        assert {id(tensor) for tensor in state} <= {id(tensor) for tensor in method.step_tensors()}
        learn(method, data())
        assert all(tensor.any() for tensor in state)
    assert method.nbytes == 0


def test_it_follows_the_learning_rate() -> None:
    method = learner("finetune", "adamw")
    method.start(0)
    learn(method, data())
    before = [p.detach().clone() for p in method.network.parameters()]
    method.lr.zero_()
    learn(method, data())
    assert all(torch.equal(a, b) for a, b in zip(before, method.network.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["gpm", "ewc"])
def test_captured_steps_equal_eager_ones(method: str, name: str) -> None:
    device = torch.device("cuda", 0)
    torch.set_float32_matmul_precision("highest")
    x, y = data().x.to(device), data().y.to(device)
    ends = []
    for kind in (EagerSteps, CapturedSteps):
        net = network().to(device)
        random = RandomState(5, device)
        random.use()
        made = METHODS[method](net, lr=0.01, **OPTIONS[method])
        made.use_optimizer(name, **CASES[name])
        with torch.cuda.stream(torch.cuda.Stream(device)):
            made.start(0)
            made.finish(0, Split.of(x, y))
            made.start(1)
            steps = kind(made, Split.of(x, y), 8)
            if isinstance(steps, CapturedSteps):
                run_to_completion(steps.capture())
            random.set(torch.Generator(device).manual_seed(7).get_state())
            for epoch in range(3):
                made.lr.fill_(0.01 / (epoch + 1))
                run_to_completion(steps.epoch())
        torch.cuda.synchronize()
        ends.append([p.detach().clone() for p in net.parameters()])
    for eager, captured in zip(*ends, strict=True):
        assert torch.allclose(eager, captured, rtol=1e-4, atol=1e-6)


def test_the_fast_form_is_of_plain_sgd() -> None:
    method = Finetune(network(classes=3), lr=0.1)
    assert is_linear_chain(method)
    method.use_optimizer("adamw")
    assert not is_linear_chain(method)


def test_its_options_are_checked() -> None:
    method = Finetune(network(), lr=0.1)
    with pytest.raises(OptionError, match=r"no such option of the optimizer sgd\. Did you mean 'momentum'"):
        method.use_optimizer("sgd", momentun=0.9)
    with pytest.raises(OptionError, match="momentum takes a number from 0 to under 1"):
        method.use_optimizer("sgd", momentum=1.0)
    with pytest.raises(LookupError, match=r"No optimizer called 'adamm'\. Did you mean"):
        method.use_optimizer("adamm")
