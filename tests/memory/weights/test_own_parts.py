"""Parts of a task's own: what they add to a layer, when they start anew, and what they let a task learn."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from remnant import GPM
from remnant.memory.weights.own_parts import OwnPart

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")

LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "a sequence": (lambda: nn.Linear(6, 5), (4, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=2, dilation=2), (2, 4, 9)),
    "grouped conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, padding_mode="reflect", padding=1), (2, 4, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), (2, 4, 5, 5)),
}


def parts_of(model: nn.Module) -> list[OwnPart]:
    return [module for module in model.modules() if isinstance(module, OwnPart)]


def train(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, steps: int = 40) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def task(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(60, 12, generator=generator), torch.randint(0, 3, (60,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_part_starts_at_zero_and_adds_u_v_x(kind: str) -> None:
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(shape, dtype=torch.float64)
    plain = layer(x).detach()
    GPM(layer, recall=True, own_rank=2)
    (part,) = parts_of(layer)
    torch.testing.assert_close(layer(x), plain, rtol=0, atol=0)
    nn.init.normal_(part.up.weight)
    # With one group, U·V is a change of the weight: the layer without a part computes the same.
    twin = make().double()
    if getattr(twin, "groups", 1) == 1:
        up, down = part.up.weight.flatten(1), part.down.weight
        transposed = isinstance(twin, nn.ConvTranspose2d)
        product = torch.einsum("or,ir...->io..." if transposed else "or,r...->o...", up, down)
        twin.load_state_dict({"weight": layer.weight + product, "bias": layer.bias})
        torch.testing.assert_close(layer(x), twin(x))
    else:
        torch.testing.assert_close(layer(x), plain + part.up(part.down(x)))
    torch.testing.assert_close(layer(input=x), layer(x))


def test_a_full_network_still_learns_and_nothing_is_forgotten() -> None:
    losses = {}
    for rank in (0, 4):
        model = network()
        memory = GPM(model, 1.0, recall=True, own_rank=rank)
        optimizer = memory.attach(torch.optim.Adam(model.parameters(), lr=0.03))
        train(model, optimizer, *task(0), steps=150)
        memory.consolidate(task(0)[0])
        with memory.recall(0):
            then = model(task(0)[0]).detach()
        assert memory.report().tightest.share == 1
        losses[rank] = train(model, optimizer, *task(1), steps=150)
        memory.verify(recall=True)
        with memory.recall(0):
            torch.testing.assert_close(model(task(0)[0]), then, rtol=1e-5, atol=1e-5)
    assert losses[4] < 0.5 * losses[0]


def test_every_task_starts_anew_and_its_optimizer_state_with_it() -> None:
    model = network()
    memory = GPM(model, 0.9, recall=True, own_rank=2)
    optimizer = memory.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    first = [part.down.weight.detach().clone() for part in parts_of(model)]
    train(model, optimizer, *task(0))
    assert all(part.up.weight.abs().max() > 0 for part in parts_of(model))
    memory.consolidate(task(0)[0])
    for part, old in zip(parts_of(model), first, strict=True):
        assert not part.up.weight.any()
        assert not torch.equal(part.down.weight, old)
        assert part.up.weight not in optimizer.state
        assert model[0].weight in optimizer.state
    train(model, optimizer, *task(1))
    with memory.recall(0):
        assert all(part.up.weight.any() for part in parts_of(model))


def test_training_the_recalled_network_trains_the_parts_of_the_last_task() -> None:
    model = network()
    memory = GPM(model, 0.9, recall=True, own_rank=2)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, *task(0))
    memory.consolidate(task(0)[0])
    with memory.recall(0):
        before = F.cross_entropy(model(task(0)[0]), task(0)[1])
    with memory.recalling():
        train(model, optimizer, *task(0))
        inside = model(task(0)[0]).detach()
    assert not any(part.up.weight.any() for part in parts_of(model))
    with memory.recall(0):
        torch.testing.assert_close(model(task(0)[0]), inside)
    assert F.cross_entropy(inside, task(0)[1]) < before
    with pytest.raises(ZeroDivisionError), memory.recalling():
        raise ZeroDivisionError
    assert not any(part.up.weight.any() for part in parts_of(model))


def test_verify_compares_an_old_task_with_its_own_parts_in_place() -> None:
    model = network()
    memory = GPM(model, 0.99999, recall=True, own_rank=2)
    optimizer = memory.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    flat = task(0)[0] * (torch.arange(12) < 4)  # leaves room
    train(model, optimizer, flat, task(0)[1])
    memory.consolidate(flat)
    train(model, optimizer, *task(1))
    kept, given = memory.verify({0: flat}).tasks
    assert kept.drift is not None
    assert kept.drift < 1e-2
    assert given.drift is not None
    assert given.drift < 1e-2
    with torch.no_grad():
        assert (model(flat) - 1).norm() > 0  # and the plain model is another network
        plain = model(flat)
        with memory.recall(0):
            assert (model(flat) - plain).norm() > 0.1 * plain.norm()


def test_copies_and_files_keep_the_parts(tmp_path: Path) -> None:
    model = network()
    memory = GPM(model, 0.9, recall=True, own_rank=2)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(2):
        train(model, optimizer, *task(number))
        memory.consolidate(task(number)[0])
    train(model, optimizer, *task(2))  # the third task's parts are half trained
    memory.save(tmp_path / "memory.safetensors")
    fresh = network()
    loaded = GPM.load(tmp_path / "memory.safetensors", fresh)
    fresh.load_state_dict(model.state_dict())
    twin = copy.deepcopy(memory)
    for other, network_of_other in ((loaded, fresh), (twin, twin._model)):
        x = task(5)[0]
        torch.testing.assert_close(network_of_other(x), model(x), rtol=0, atol=0)
        for number in range(2):
            with memory.recall(number), other.recall(number):
                torch.testing.assert_close(network_of_other(x), model(x), rtol=0, atol=0)
    part, copied = parts_of(model)[0], parts_of(twin._model)[0]
    nn.init.zeros_(copied.up.weight)
    assert part.up.weight.any()  # the copy has parts of its own
    assert memory.report().nbytes > GPM(network(), 0.9, recall=True).report().nbytes


def test_only_plain_selected_layers_have_parts() -> None:
    class Squared(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).square()

    model = nn.Sequential(nn.Linear(4, 4), Squared(4, 4), nn.Embedding(3, 3), nn.Linear(4, 2))
    GPM(model, recall=True, own_rank=1, exclude=["3"])
    assert [bool(parts_of(layer)) for layer in model] == [True, False, False, False]


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="needs recall=True"):
        GPM(network(), own_rank=2)
    for wrong in (-1, 1.5, True, "a"):
        with pytest.raises(ValueError, match="own_rank is"):
            GPM(network(), recall=True, own_rank=wrong)  # type: ignore[arg-type]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = GPM(model, recall=True, own_rank=2)
    memory.attach(optimizer)
    with pytest.raises(ValueError, match=r"not its own part .* after the memory"):
        optimizer.step()
    with pytest.raises(ValueError, match="own part of rank 2"):
        GPM(model, recall=True, own_rank=3)
    plain = nn.Sequential(network(), nn.Bilinear(2, 2, 2))
    with pytest.raises(ValueError, match="cannot protect"):
        GPM(plain, recall=True, own_rank=2)
    assert not parts_of(plain)  # a refused model stays as it was


def test_a_wrapper_that_would_not_know_the_parts_is_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="Make the memory first"):
            GPM(DistributedDataParallel(network()), recall=True, own_rank=2)
        model = network()
        GPM(model, recall=True, own_rank=2)
        GPM(DistributedDataParallel(model), recall=True, own_rank=2)  # the wrapper has seen the parts
    finally:
        torch.distributed.destroy_process_group()
