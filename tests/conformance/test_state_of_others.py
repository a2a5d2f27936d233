"""State that no attached optimizer moves: layers that others train, fixed tensors whose values change places, new rows."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remnant import GPM, LeakError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.mix = nn.Linear(20, 40), nn.Linear(40, 40).requires_grad_(False)
        self.head = nn.Linear(40, 3)
        self.other = nn.Linear(40, 3)  # the head of an earlier task
        self.teacher = copy.deepcopy(self.body).requires_grad_(False)
        self.scale = 1.0
        self.register_buffer("order", torch.eye(40)[torch.randperm(40)])
        self.register_buffer("mask", (torch.rand(40) > 0.5).float())
        self.register_buffer("prototypes", torch.zeros(2, 40))
        self.register_buffer("classes", torch.arange(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x)) @ self.order
        return self.head(torch.relu(self.mix(hidden)) * (self.mask > 0.5)) * self.scale


def made(**options: object) -> tuple[Net, GPM, torch.optim.Optimizer, Tensor]:
    """A network with one task remembered."""
    torch.manual_seed(0)
    net = Net()
    memory = GPM(net, threshold=1.0, exclude=["other"], **options)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam([*net.body.parameters(), *net.head.parameters()], 1e-2)
    memory.attach(optimizer)
    x = torch.randn(8, 20)
    learn(net, optimizer, x)
    memory.consolidate([x])
    return net, memory, optimizer, x


def learn(net: Net, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    for _ in range(5):
        net.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def transpose(net: Net) -> None:
    net.mix.weight.data = net.mix.weight.data.T.clone()


def permute(net: Net) -> None:
    net.order.copy_(net.order.roll(1, 0))  # the sums of its rows and columns stay


def exchange(net: Net) -> None:
    weight = net.mix.weight.data
    weight[3, 5], weight[5, 3] = weight[5, 3].item(), weight[3, 5].item()


@pytest.mark.parametrize("keep_examples", [True, False])
@pytest.mark.parametrize("change", [transpose, permute, exchange])
def test_fixed_values_that_change_places_are_noticed(change: Callable[[Net], None], keep_examples: bool) -> None:
    net, memory, _, _ = made(keep_examples=keep_examples)
    change(net)
    with pytest.raises(LeakError, match=r"'(mix\.weight|order)'"):
        memory.verify()


@pytest.mark.parametrize("keep_examples", [True, False])
@pytest.mark.parametrize("which", ["unfrozen", "added"])
def test_a_layer_that_an_optimizer_of_its_own_trains_is_noticed(which: str, keep_examples: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40).requires_grad_(False), nn.Linear(40, 3))
    memory = GPM(model, threshold=1.0, keep_examples=keep_examples)
    x = torch.randn(8, 20)
    if which == "added":
        model.append(nn.Linear(3, 3))
    memory.consolidate([x])
    layer = model[2].requires_grad_(True) if which == "unfrozen" else model[4]
    memory.verify()
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)  # and attach is forgotten
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()
    with pytest.raises(LeakError, match=rf"'{2 if which == 'unfrozen' else 4}\.weight'"):
        memory.verify()


@pytest.mark.parametrize("also", ["a teacher moves", "a head is deleted"])
def test_a_changed_attribute_is_noticed_although(also: str) -> None:
    net, memory, optimizer, _ = made()
    if also == "a head is deleted":
        del net.other
    else:
        with torch.no_grad():
            net.teacher.weight.lerp_(net.body.weight, 0.1)
    memory.verify()
    net.scale = 1.05
    learn(net, optimizer, torch.randn(8, 20))
    with pytest.raises(LeakError, match="Something other than a tensor's value has changed"):
        memory.verify()


def test_training_that_changes_a_mask_in_the_first_task_is_noticed() -> None:
    torch.manual_seed(0)
    net = Net()
    memory = GPM(net, threshold=1.0)
    net.mask.copy_(1 - net.mask)
    with pytest.warns(UserWarning, match="mask"):
        memory.consolidate([torch.randn(8, 20)])


@pytest.mark.parametrize("keep_examples", [True, False])
def test_a_buffer_may_get_more_rows_but_not_lose_one(keep_examples: bool) -> None:
    net, memory, _, x = made(keep_examples=keep_examples)
    net.prototypes = torch.cat([net.prototypes, torch.randn(2, 40)])
    memory.verify()
    memory.consolidate([x])
    net.prototypes = net.prototypes[1:]
    if keep_examples:  # no output depends on them
        memory.verify()
    else:
        with pytest.raises(LeakError, match="prototypes"):
            memory.verify()


def test_without_examples_any_saved_buffer_of_another_shape_counts() -> None:
    net, memory, _, x = made(keep_examples=False)
    net.classes = torch.arange(3)
    with pytest.raises(LeakError, match="classes"):
        memory.verify()
    memory.consolidate([x])
    memory.verify()


def test_a_head_that_grows_in_place_is_named() -> None:
    net, memory, _, _ = made()
    net.head.weight.data, net.head.bias.data = torch.randn(5, 40), torch.randn(5)
    for use in (lambda: memory.attach(torch.optim.SGD(net.parameters(), 0.1)), memory.verify):
        with pytest.raises(RuntimeError, match=r"'head' had the shape \(3, 40\).*and have \(5, 40\) now"):
            use()
