"""The loops that people write around an optimizer keep W·M = W₀·M too, and still learn the new task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from remnant import GPM
from remnant.memory.steps.bundle import Bundle

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")


class Net(nn.Module):
    """Two layers of one shape, which are projected together, a norm, and a layer of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)
        self.second = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.norm(self.first(x))))))


def task(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(64, 5, generator=generator) @ torch.randn(5, 12, generator=generator)
    return rows, (rows @ torch.randn(12, 3, generator=generator)).argmax(1)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def memory(net: Net) -> GPM:
    """After one task."""
    memory = GPM(net, 0.98)
    memory.consolidate([task(1)])
    return memory


def loss(net: nn.Module) -> Tensor:
    x, y = task(2)
    return F.cross_entropy(net(x), y)


def learn(net: nn.Module, step: Callable[[], object], steps: int = 40) -> None:
    """Runs a loop, and checks that it learns."""
    first = loss(net).item()
    for _ in range(steps):
        loss(net).backward()
        step()
        net.zero_grad()
    assert loss(net).item() < 0.9 * first


class Wrapper:
    """As accelerate and others wrap an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()


class OptimizerWrapper(Wrapper, Optimizer):
    """An Optimizer that never called Optimizer.__init__, so that nobody can hook its own step."""


class SAM(Optimizer):
    """Sharpness-aware minimisation: climbs a little, then steps from where it was with the gradient found there."""

    def __init__(self, parameters: Iterable[Tensor], base: Callable[..., Optimizer], **options: Any) -> None:
        super().__init__(list(parameters), {"rho": 0.05})
        self.base_optimizer = base(self.param_groups, **options)

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["before"] = parameter.detach().clone()
            parameter += 0.05 * parameter.grad

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data = self.state[parameter]["before"]
        self.base_optimizer.step()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


class Lookahead(Optimizer):
    """Every fifth step goes back half the way to slow weights, which are older than the task."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.count = optimizer, 0
        self.slow = [torch.randn_like(p) for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count % 5 == 0:
            for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                slow.lerp_(parameter, 0.9)
                parameter.copy_(slow)


@pytest.mark.parametrize("wrap", [Wrapper, OptimizerWrapper, lambda x: Wrapper(OptimizerWrapper(x)), Lookahead])
def test_a_wrapped_optimizer_is_protected(net: Net, memory: GPM, wrap: Callable[[Any], Any]) -> None:
    optimizer = wrap(AdamW(net.parameters(), lr=0.01))
    assert memory.attach(optimizer) is optimizer
    learn(net, optimizer.step)
    assert memory.verify().worst < 1e-5
    memory.detach(optimizer)
    learn(net, optimizer.step, steps=200)
    assert memory.verify(tolerance=1.0).worst > 0.01


@pytest.mark.parametrize("base", [SGD, AdamW])
@pytest.mark.parametrize("in_one", [False, True], ids=["first_step, second_step", "step(closure)"])
def test_sharpness_aware_minimisation_is_protected(
    net: Net, memory: GPM, base: Callable[..., Optimizer], in_one: bool
) -> None:
    optimizer = memory.attach(SAM(net.parameters(), base, lr=0.5 if base is SGD else 0.02))

    def again() -> None:
        net.zero_grad()
        loss(net).backward()

    def step() -> None:
        if in_one:
            optimizer.step(again)
        else:
            optimizer.first_step()
            again()
            optimizer.second_step()

    learn(net, step)
    assert memory.verify().worst < 1e-5


def test_two_steps_that_nobody_can_hook_are_refused(net: Net, memory: GPM) -> None:
    class Alone(SGD):
        def second_step(self) -> None: ...

    with pytest.raises(ValueError, match=r"Alone.*memory\.project\(\).*memory\.restore\(\)"):
        memory.attach(Alone(net.parameters(), lr=0.1))


def test_clipping_after_projecting_leaves_the_new_task_its_whole_norm() -> None:
    torch.manual_seed(0)
    model, old, new = nn.Linear(12, 3), task(1)[0], task(2)[0]
    memory = GPM(model, 0.98)
    memory.consolidate(old)
    norms = []
    for clip in (lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), lambda: memory.clip_grad_norm_(1.0)):
        model.zero_grad()
        model(torch.cat([100 * old, new])).square().mean().backward()  # most of the gradient lies in the memory
        assert clip() > 1
        memory.project()
        norms.append(float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()))
    assert norms[0] < 0.1
    assert norms[1] == pytest.approx(1.0, rel=1e-3)


def test_clipping_takes_the_arguments_of_torch_and_other_parameters(net: Net, memory: GPM) -> None:
    loss(net).backward()
    before = net.head.weight.grad.clone()
    norm = memory.clip_grad_norm_(1e-3, float("inf"), True, False, parameters=net.first.parameters())
    assert net.first.weight.grad.abs().max() <= 1.001e-3 < norm
    assert net.head.weight.grad.norm() > 0.1 * before.norm()
    optimizer = memory.attach(SGD(net.parameters(), lr=0.5))
    learn(net, lambda: (memory.clip_grad_norm_(0.5), optimizer.step()))
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("change", [lambda g: g + 0.05 * torch.randn_like(g), lambda g: g.clamp(-1e-2, 1e-2)])
def test_a_hook_after_ours_may_change_the_gradients(net: Net, memory: GPM, change: Callable[[Tensor], Tensor]) -> None:
    optimizer = memory.attach(SGD(net.parameters(), lr=0.1))

    def hook(*_: object) -> None:
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad = change(parameter.grad)

    optimizer.register_step_pre_hook(hook)
    for _ in range(3):  # every eighth step of plain SGD is restored in any case
        loss(net).backward()
        optimizer.step()
        net.zero_grad()
    assert memory.verify().worst < 1e-4


@pytest.mark.parametrize("norm", ["freeze", "free"])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_an_optimizer_per_parameter_may_step_in_the_backward_pass(
    net: Net, norm: str, kind: Callable[..., Optimizer]
) -> None:
    memory = GPM(net, 0.98, norm=norm)
    memory.consolidate([task(1)])
    optimizers = {
        parameter: memory.attach(kind([parameter], lr=0.3 if kind is SGD else 0.01)) for parameter in net.parameters()
    }

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    learn(net, lambda: None, steps=100)
    assert memory.verify().worst < 1e-5


def test_several_optimizers_all_restore_against_rounding(
    net: Net, memory: GPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two optimizers, a common count of steps would always leave out the same one."""
    restored: list[Tensor] = []
    monkeypatch.setattr(Bundle, "restore", lambda bundle: restored.extend(bundle.parameters))
    optimizers = [memory.attach(SGD(layer.parameters(), lr=0.1)) for layer in (net.first, net.second)]
    for _ in range(8):
        loss(net).backward()
        for optimizer in optimizers:
            optimizer.step()
        net.zero_grad()
    for parameter in (*net.first.parameters(), *net.second.parameters()):
        assert sum(parameter is found for found in restored) == 1


class ScheduleFree(Optimizer):
    """As schedule-free SGD: the weights are y while it trains and the average x of z for evaluation."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, beta: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})
        self.count, self.training = 0, True

    @torch.no_grad()
    def _swap(self, towards_z: float) -> None:
        for parameter in self.param_groups[0]["params"]:
            if "z" in self.state[parameter]:
                parameter.lerp_(self.state[parameter]["z"], towards_z)
        self.training = not self.training

    def eval(self) -> None:
        if self.training:
            self._swap(1 - 1 / self.param_groups[0]["beta"])

    def train(self) -> None:
        if not self.training:
            self._swap(1 - self.param_groups[0]["beta"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        lr, beta = self.param_groups[0]["lr"], self.param_groups[0]["beta"]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            z = state.setdefault("z", parameter.detach().clone())
            rescaled = parameter.grad / (parameter.grad.abs() + 1e-3)  # so that z leaves the complement
            parameter.lerp_(z, 1 / self.count)
            parameter.add_(rescaled, alpha=lr * (beta * (1 - 1 / self.count) - 1))
            z.sub_(rescaled, alpha=lr)


def test_a_schedule_free_optimizer_is_restored_after_eval(net: Net, memory: GPM) -> None:
    optimizer = memory.attach(ScheduleFree(net.parameters(), lr=3e-3))
    learn(net, optimizer.step, steps=100)
    assert memory.verify().worst < 1e-5
    optimizer.eval()
    assert memory.verify(tolerance=1.0).worst > 1e-3
    memory.restore()
    assert memory.verify().worst < 1e-5
    optimizer.train()
    learn(net, optimizer.step, steps=100)


def test_restore_puts_an_average_of_the_weights_back(net: Net, memory: GPM) -> None:
    average = AveragedModel(Net(), multi_avg_fn=get_ema_multi_avg_fn(0.9))  # it started from other weights
    average.update_parameters(Net())
    optimizer = memory.attach(AdamW(net.parameters(), lr=0.01))
    learn(net, lambda: (optimizer.step(), average.update_parameters(net)))
    trained = {name: p.detach().clone() for name, p in average.module.named_parameters()}
    memory.restore(average)
    for name, subspace in memory.subspaces.items():
        ours, theirs = net.get_submodule(name), average.module.get_submodule(name)
        held, found, was = (
            torch.cat([w, b[:, None]], 1) if b is not None else w
            for w, b in (
                (ours.weight, ours.bias),
                (theirs.weight, theirs.bias),
                (trained[f"{name}.weight"], trained.get(f"{name}.bias")),
            )
        )
        basis = subspace.basis.float()  # type: ignore[union-attr]
        torch.testing.assert_close(found @ basis, held @ basis, atol=1e-4, rtol=1e-4)
        free = found - was
        assert (free - free @ basis @ basis.T).norm() < 1e-4, "what the memory does not hold stays averaged"
    assert torch.equal(average.module.norm.weight, net.norm.weight)


def test_restore_refuses_another_model(memory: GPM) -> None:
    with pytest.raises(ValueError, match=r"copy of the memory's model.*'first\.weight'"):
        memory.restore(nn.Linear(12, 12))


@pytest.mark.parametrize("way", ["batch", "per example", "weights of one's own"])
def test_gradients_of_torch_func_are_protected(net: Net, memory: GPM, way: str) -> None:
    """`grad` leaves no `.grad`: the loop sets it, or writes its own weights back and restores them."""
    x, y = task(2)
    optimizer = memory.attach(AdamW(net.parameters(), lr=0.01))

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    def step() -> None:
        weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
        if way == "per example":
            each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(weights, x[:, None], y[:, None])
            gradients = {name: gradient.mean(0) for name, gradient in each.items()}
        else:
            gradients = torch.func.grad(loss_of)(weights, x, y)
        if way == "weights of one's own":
            net.load_state_dict({name: weight - 0.5 * gradients[name] for name, weight in weights.items()})
            memory.restore()
        else:
            for name, parameter in net.named_parameters():
                parameter.grad = gradients[name]
            optimizer.step()

    first = loss(net).item()
    for _ in range(30):
        step()
    assert loss(net).item() < 0.9 * first
    assert memory.verify().worst < 1e-5
