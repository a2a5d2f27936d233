"""WSN against one weight after another, and old masks that give the same outputs bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.methods.wsn import WSN, packed, unpacked
from remnant.models import Network, build

SHAPES: dict[str, tuple[int, ...]] = {"mlp": (6,), "alexnet": (3, 19, 19), "resnet18": (3, 16, 16)}


def network(kind: str = "mlp", classes: Any = (3, 3, 3), **options: Any) -> Network:
    usual: dict[str, Any] = {"hidden": (9, 8), "bias": True} if kind == "mlp" else {"width": 2}
    return build(kind, input_shape=SHAPES[kind], classes=classes, seed=3, **usual, **options).double()


def data(net: Network, seed: int) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(24, *net.input_shape, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (24,), generator=g))


def learn(method: WSN, task: int) -> None:
    split = data(method.network, task)
    method.start(task)
    for part in torch.arange(24).split(8):
        method.step(split.x[part], split.y[part])
    method.network.eval()
    method.finish(task, split)


class SlowWSN:
    """Python lists: which weights a task selects, and which one moves."""

    def __init__(self, net: Any, scores: list[Tensor], density: float) -> None:
        self.net, self.density = net, density
        self.scores = [s.detach().clone() for s in scores]
        self.masks: list[list[Tensor]] = []

    def mask(self, scores: Tensor) -> Tensor:
        flat = scores.flatten().tolist()
        best = sorted(range(len(flat)), key=lambda i: -abs(flat[i]))[: round(self.density * len(flat))]
        return torch.tensor([float(i in best) for i in range(len(flat))]).double().view(scores.shape)

    def outputs(self, x: Tensor, task: int, weights: list[Tensor]) -> Tensor:
        for weight, layer in zip(weights, self.net.hidden, strict=True):
            x = F.relu(x @ weight.T + layer.bias)
        out: Tensor = self.net.heads[task](x)
        return out

    def step(self, x: Tensor, y: Tensor, task: int, lr: float) -> None:
        layers = list(self.net.hidden)
        effective = [
            (layer.weight * self.mask(s)).detach().requires_grad_()
            for layer, s in zip(layers, self.scores, strict=True)
        ]
        free = [*self.net.heads[task].parameters(), *([layer.bias for layer in layers] if task == 0 else [])]
        gradients = torch.autograd.grad(F.cross_entropy(self.outputs(x, task, effective), y), [*effective, *free])
        with torch.no_grad():
            for n, (layer, g) in enumerate(zip(layers, gradients, strict=False)):
                mask, weight = self.mask(self.scores[n]), layer.weight.clone()
                for place in (tuple(i) for i in torch.ones_like(g).nonzero().tolist()):
                    taken = any(float(old[n][place]) for old in self.masks)
                    layer.weight[place] -= 0.0 if taken else lr * g[place] * mask[place]
                    self.scores[n][place] -= lr * g[place] * weight[place] * self.scores[n][place].sign()
            for p, g in zip(free, gradients[len(layers) :], strict=True):
                p -= lr * g

    def finish(self) -> None:
        self.masks.append([self.mask(s) for s in self.scores])


def test_it_is_the_algorithm_one_weight_after_another() -> None:
    ours, theirs = network(), network()
    method = WSN(ours, lr=0.125, density=0.4)
    slow = SlowWSN(theirs, list(method.scores), 0.4)
    for task in range(3):
        split = data(ours, task)
        learn(method, task)
        for part in torch.arange(24).split(8):
            slow.step(split.x[part], split.y[part], task, 0.125)
        slow.finish()
        own = [p for name, p in ours.named_parameters() if "scores" not in name]
        for p, q in zip(own, theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
        for mask, expected in zip(method.masks_of(task), slow.masks[task], strict=True):
            assert torch.equal(mask.double(), expected)
    used = sum(int((sum(old[n] for old in slow.masks) > 0).sum()) for n in range(2))  # type: ignore[call-overload]
    size, weights = sum(p.numel() for p in theirs.parameters()), 6 * 9 + 9 * 8
    assert used < weights
    assert method.capacity == pytest.approx((size - weights + used + 3 * weights / 32) / size)
    assert method.nbytes == 3 * -(-weights // 8) + 8 * weights


@pytest.mark.parametrize(
    ("kind", "options", "optimizer"),
    [
        ("mlp", {}, None),
        ("mlp", {"classes": 3}, {"name": "adam"}),
        ("resnet18", {"norm": "batch"}, {"name": "adam"}),
        ("alexnet", {"norm": "running"}, {"name": "adamw", "weight_decay": 0.1}),
        ("alexnet", {"norm": "batch"}, None),
    ],
)
def test_old_masks_give_the_same_outputs_bit_for_bit(kind: str, options: dict[str, Any], optimizer: Any) -> None:
    method = WSN(network(kind, **options), lr=0.01, density=0.5)
    if optimizer:
        method.use_optimizer(**optimizer)
    x, outputs = data(method.network, 9).x, []
    for task in range(3):
        learn(method, task)
        with torch.no_grad():
            outputs.append(method.logits(x, task))
            for earlier in range(task):
                assert torch.equal(method.logits(x, earlier), outputs[earlier])
                assert not torch.equal(method.network(x, earlier), outputs[earlier])


@pytest.mark.parametrize("count", [1, 7, 8, 9, 70])
def test_masks_are_bits(count: int) -> None:
    for mask in (torch.rand(count) < 0.5, torch.ones(count, dtype=torch.bool)):
        bits = packed(mask)
        assert bits.nbytes == -(-count // 8)
        assert torch.equal(unpacked(bits, count), mask)
