"""PackNet's packing against a slow version of it, and outputs that never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_nets import data_for, learn_task
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods.packnet import PackNet
from remnant.models import Network, build
from remnant.options import OptionError

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((6,), {"hidden": (9, 8), "bias": True}),
    "alexnet": ((3, 19, 19), {"width": 2}),
    "lenet": ((3, 12, 12), {"width": 4}),
    "resnet18": ((3, 16, 16), {"width": 2}),
}


def network(kind: str = "mlp", classes: Sequence[int] = (3, 3, 3), **options: Any) -> Network:
    shape, usual = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=3, **{**usual, **options}).double()


def learn(method: PackNet, task: int, split: Split, epochs: int = 4, lr: float = 0.125) -> None:
    learn_task(method, task, split, epochs=epochs, lr=lr, shuffled=False)


class SlowPackNet:
    """One weight after another, as Python lists of who owns it."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.layers = {name: p for name, p in net.named_parameters() if p.ndim > 1 and "heads" not in name}
        self.owner = {name: [0] * p.numel() for name, p in self.layers.items()}

    def learn(self, task: int, split: Split, epochs: int, retrain: int) -> None:
        self.trained = 0
        for epoch in range(epochs):
            if epoch == epochs - retrain:
                self.prune(task)
                self.trained = task + 1
            for part in torch.arange(len(split)).split(8):
                self.step(task, split.x[part], split.y[part], 0.125 if epoch < epochs - retrain else 0.0125)

    def step(self, task: int, x: Tensor, y: Tensor, lr: float) -> None:
        parameters = dict(self.net.named_parameters())
        parameters = {n: p for n, p in parameters.items() if "heads" not in n or n.startswith(f"heads.{task}.")}
        found = torch.autograd.grad(F.cross_entropy(self.net(x, task), y), list(parameters.values()))
        with torch.no_grad():
            for (name, parameter), gradient in zip(parameters.items(), found, strict=True):
                if name in self.owner:
                    gradient = gradient * (torch.tensor(self.owner[name]) == self.trained).view(gradient.shape)
                elif "heads" not in name and task > 0:
                    continue
                parameter -= lr * gradient

    def prune(self, task: int) -> None:
        for name, weight in self.layers.items():
            free = [i for i, owner in enumerate(self.owner[name]) if owner == 0]
            free.sort(key=lambda i: -abs(float(weight.view(-1)[i].detach())))
            keep = -(-len(free) // (3 - task))
            for place, i in enumerate(free):
                if place < keep:
                    self.owner[name][i] = task + 1
                else:
                    weight.data.view(-1)[i] = 0


def test_three_tasks_are_packed_as_by_hand() -> None:
    ours, theirs = network(), network()
    method, slow = PackNet(ours, lr=0.125, retrain=2), SlowPackNet(theirs)
    for task in range(3):
        split = data_for(ours, task)
        learn(method, task, split)
        slow.learn(task, split, 4, 2)
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-6, atol=1e-9), name
        assert [owners.flatten().tolist() for owners in method.owners] == list(slow.owner.values())
    counts = [torch.bincount(owners.flatten().long(), minlength=4) for owners in method.owners]
    assert all(count[0] == 0 and count[1:].max() - count[1:].min() <= 1 for count in counts)  # equal parts


@pytest.mark.parametrize("optimizer", [None, {"name": "adamw", "weight_decay": 0.1}, {"name": "sgd", "momentum": 0.9}])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("mlp", {}), ("lenet", {}), ("resnet18", {}), ("alexnet", {"norm": "running"}), ("alexnet", {"norm": "batch"})],
)
def test_a_tasks_outputs_never_change(kind: str, options: dict[str, Any], optimizer: Any) -> None:
    method = PackNet(network(kind, **options), lr=0.1, retrain=1)
    if optimizer:
        method.use_optimizer(**optimizer)
    x, outputs = data_for(method.network, 9).x, []
    for task in range(3):
        learn(method, task, data_for(method.network, task), epochs=2, lr=0.01)
        with torch.no_grad():
            outputs.append(method.logits(x, task))
            assert torch.equal(outputs[task], method.network(x, task))  # at its end, a task has all weights in use
            for earlier in range(task):
                assert torch.equal(method.logits(x, earlier), outputs[earlier])
                assert not torch.equal(method.network(x, earlier), outputs[earlier])


def test_a_task_that_stops_early_is_pruned_all_the_same() -> None:
    method = PackNet(network(), lr=0.1, retrain=2)
    before = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    learn(method, 0, data_for(method.network, 0), epochs=2)
    method.network.load_state_dict(before)
    method.finish(0, data_for(method.network, 0))
    shares = [float((p != 0).double().mean()) for p in method.weights.values()]
    assert shares == pytest.approx([1 / 3] * 2, abs=0.02)


def test_settings_are_checked() -> None:
    training = resolve("split-cifar100", "packnet").training
    assert "patience" not in training  # a fixed number of epochs, of which the last ones come after pruning
    assert training["epochs"] > resolve("split-cifar100", "packnet").options["retrain"]
    with pytest.raises(OptionError, match="needs the task at test time"):
        resolve("pmnist", "packnet")
