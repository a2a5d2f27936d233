"""CUBER written out, and tasks that are closed for good."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from slow_trgp import SlowTRGP
from small_nets import SHAPES, network, train
from torch import Tensor

from remnant.data import Split
from remnant.methods.cuber import CUBER
from remnant.methods.trgp import TRGP
from small_options import announced

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")
LR, EPSILON, TRUST, PULL = 0.125, 0.8, 0.1, 0.3


def data(kind: str = "mlp", seed: int = 0) -> Split:
    """Similar tasks, so that gradients agree."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *SHAPES[kind], generator=g, dtype=torch.float64)
    if kind == "mlp":
        x[:, 6:] *= 0.2
    return Split.of(x, x.flatten(1)[:, :3].argmax(1))


def learner(make: type[TRGP], kind: str = "mlp", **options: Any) -> Any:
    given = {"lr": LR, "threshold": {"value": EPSILON}, "samples": 1000, "trust": TRUST, **options}
    net = network(kind, bias=bool(options.pop("bias", False)))
    given.pop("bias", None)
    return announced(make(net, **given), *(data(kind, task) for task in range(3)))  # type: ignore[arg-type]


class SlowCUBER(SlowTRGP):
    """With a projection off the bases of the closed tasks, one after another, and the gradient of the pull by autograd."""

    def __init__(self, net: Any, agreement: float) -> None:
        super().__init__(net, LR, EPSILON, TRUST)
        self.agreement = agreement
        self.G: list[list[Tensor]] = []
        self.closings = 0

    def gradients(self, x: Tensor, y: Tensor, task: int, *, scaled: bool) -> list[Tensor]:
        logits = self.logits(x, task) if scaled else self.net(x, task)
        return list(torch.autograd.grad(F.cross_entropy(logits, y), [layer.weight for layer in self.net.hidden]))

    def agrees(self, j: int, n: int, g: Tensor) -> bool:
        G = self.G[j][n]
        return float((G * g).sum()) > self.agreement * float(G.norm() * g.norm())

    def start(self, task: int, split: Split) -> None:
        super().start(task, split)
        self.before = [layer.weight.detach().clone() for layer in self.net.hidden]
        gradients = self.gradients(split.x, split.y, task, scaled=False)
        self.open = [{j for j in js if self.agrees(j, n, gradients[n])} for n, js in enumerate(self.trusted)]

    def projected(self, gradient: Tensor, n: int) -> Tensor:
        for j in list(self.open[n]):
            if not self.agrees(j, n, gradient):
                self.open[n].remove(j)
                self.closings += 1
        W = self.net.hidden[n].weight.detach().clone().requires_grad_()
        for j in self.open[n]:
            with torch.enable_grad():
                pull = PULL * ((W - self.before[n]) @ self.B[j][n]).norm()
            gradient = gradient + torch.autograd.grad(pull, W)[0].nan_to_num()
        closed = [self.B[j][n] for j in range(len(self.B)) if j not in self.open[n]]
        if closed:
            basis, sizes, _ = torch.linalg.svd(torch.cat(closed, dim=1), full_matrices=False)
            basis = basis[:, sizes > 1e-9]
            gradient = gradient - gradient @ basis @ basis.T
        return gradient

    def finish(self, x: Tensor, task: int, y: Tensor | None = None) -> None:
        assert y is not None
        self.G.append(self.gradients(x, y, task, scaled=True))
        super().finish(x, task)


@pytest.mark.parametrize("agreement", [-0.1, 0.1])
def test_it_is_the_algorithm_written_out(agreement: float) -> None:
    method = learner(CUBER, agreement=agreement, pull=PULL)
    slow = SlowCUBER(network(), agreement)
    opened = 0
    for task in range(3):
        split = data(seed=task)
        method.start(task)
        slow.start(task, split)
        opened += sum(map(len, slow.open))
        assert sum(int(each.sum()) for each in method.open.values()) == sum(map(len, slow.open))
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        method.on_epoch_end()
        method.finish(task, split)
        slow.finish(split.x, task, split.y)
        for ours, theirs in zip(method.network.hidden, slow.net.hidden, strict=True):
            torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-7, atol=1e-9)
        for old in range(task + 1):
            torch.testing.assert_close(method.logits(split.x, old), slow.logits(split.x, old), rtol=1e-6, atol=1e-8)
    assert opened > slow.closings
    assert slow.closings >= 1


def test_where_nothing_agrees_it_is_trgp() -> None:
    ends = []
    for make, options in ((CUBER, {"agreement": 1.0}), (TRGP, {})):
        torch.manual_seed(0)
        method = learner(make, **options)
        for task in range(2):
            method.start(task)
            train(method, data(seed=task))
            torch.manual_seed(task)
            method.finish(task, data(seed=task))
        ends.append(list(method.network.parameters()))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "bias"), [("mlp", True), ("alexnet", False)])
def test_a_task_that_disagrees_once_is_closed_for_good(kind: str, bias: bool) -> None:
    method = learner(CUBER, kind, agreement=-1.0, pull=0.0, bias=bias)
    method.start(0)
    train(method, data(kind))
    method.finish(0, data(kind))
    method.start(1)
    (name, is_open), *_ = method.open.items()
    gate = method.gates[name]

    def image() -> Tensor:
        return gate.layer.image(gate.M)  # type: ignore[no-any-return]

    before = image()
    train(method, data(kind, 1))
    assert is_open.tolist() == [1.0]
    assert not torch.allclose(image(), before, atol=1e-4)  # what task 0 uses has moved
    method.agreement = 2.0  # no gradient agrees as much
    method.step(data(kind, 1).x[:8], data(kind, 1).y[:8])
    method.agreement = -1.0
    after = image()
    train(method, data(kind, 1))
    assert is_open.tolist() == [0.0]
    torch.testing.assert_close(image(), after, rtol=1e-9, atol=1e-11)


def test_gradients_of_old_tasks_are_counted() -> None:
    method = learner(CUBER)
    before = method.nbytes
    method.start(0)
    method.finish(0, data())
    grown = method.memory.report().nbytes + sum(rows.nbytes for rows in method.chosen["0"].values())
    assert method.nbytes - before == grown + 8 * (12 * 10 + 10 * 9)
    with pytest.raises(ValueError, match="plain SGD"):
        method.use_optimizer("adam")
