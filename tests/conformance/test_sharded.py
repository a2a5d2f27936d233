"""Two and four processes that share the weights of one model (FSDP2, tensor parallelism) end as one process with all of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import in_ranks
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LeakError, UnsupportedError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


class Pictures(nn.Sequential):
    """Layers whose outputs no number of ranks divides evenly, and one with groups, which must be gathered."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        first = [nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU()]
        super().__init__(*first, nn.Flatten(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 3))

    @staticmethod
    def data() -> Tensor:
        return torch.randn(24, 2, 4, 4, generator=torch.Generator().manual_seed(5))


class Tokens(nn.Module):
    """An embedding that is also the head: FSDP splits it over the inputs of the one and the outputs of the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(x)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        out: Tensor = self.head(torch.tanh(self.hidden(y)).mean(dim=1))
        return out

    @staticmethod
    def data() -> Tensor:
        return torch.randint(0, 6, (24, 4), generator=torch.Generator().manual_seed(6))


def later(x: Tensor) -> Tensor:
    """The second task."""
    return x + 1 if x.is_floating_point() else 10 - x


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int = 4) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def remembering(model: Any) -> tuple[GPM, torch.optim.Optimizer]:
    memory = GPM(model, 0.9)
    return memory, memory.attach(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05))


def two_tasks(model: Any, memory: GPM, optimizer: torch.optim.Optimizer, first: list[Tensor], x: Tensor) -> list[float]:
    """Trains and remembers two tasks; returns the drift of each layer in the second one."""
    train(model, optimizer, x)
    memory.consolidate(first)
    train(model, optimizer, later(x))
    drifts = [layer.drift or 0.0 for layer in memory.verify(first).layers]
    memory.consolidate([later(x)])
    return drifts


def alone(kind: Any, folder: Path) -> None:
    """What one process with all of the data ends with."""
    model = kind()
    memory, optimizer = remembering(model)
    drifts = two_tasks(model, memory, optimizer, [kind.data()], kind.data())
    memory.save(folder / f"{kind.__name__}.safetensors")
    torch.save({"model": model.state_dict(), "drifts": drifts}, folder / f"{kind.__name__}.pt")


def fully_sharded(kind: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = kind()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    last = [child for child in model.children() if any(True for _ in child.parameters())][-1]
    if kind is not Tokens:  # two layers of it share a weight, so they belong to one group
        fully_shard(last, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def assert_as_alone(kind: Any, model: nn.Module, memory: GPM, drifts: list[float], folder: Path) -> None:
    expected = torch.load(folder / f"{kind.__name__}.pt", weights_only=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            assert torch.allclose(values, expected["model"][name], atol=1e-5), name
    assert drifts == pytest.approx(expected["drifts"], rel=1e-2, abs=1e-4)
    reference = GPM.load(folder / f"{kind.__name__}.safetensors", kind())
    assert memory.report().as_dict() == reference.report().as_dict()
    for name, subspaces in reference.subspaces.items():
        pairs = zip(*(x if isinstance(x, list) else [x] for x in (subspaces, memory.subspaces[name])), strict=True)
        for one, other in pairs:
            assert torch.allclose(one.remove(torch.eye(one.capacity)), other.remove(torch.eye(one.capacity)), atol=1e-4)


def fsdp_ends_as_one_process(kind: Any, rank: int, ranks: int, folder: Path) -> None:
    model = fully_sharded(kind)
    memory, optimizer = remembering(model)
    mine = kind.data()[rank::ranks]
    drifts = two_tasks(model, memory, optimizer, list(mine.split(4 + rank)), mine)  # more batches on some ranks
    assert_as_alone(kind, model, memory, drifts, folder)
    path = folder / f"{kind.__name__}{ranks}.safetensors"
    memory.save(path)
    memory.detach()
    loaded = GPM.load(path, model)
    adamw = loaded.attach(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05))
    train(model, adamw, mine)
    assert 0 < loaded.verify().worst < 1e-4


def a_change_of_one_shard_is_found_by_all(rank: int, ranks: int, folder: Path) -> None:
    model = fully_sharded(Pictures)
    memory, _ = remembering(model)
    memory.consolidate([Pictures.data()[rank::ranks]])
    for name, found in (("6.weight", "'6'"), ("1.bias", "'1.bias'")):
        with torch.no_grad():
            shard = model.get_parameter(name).to_local()
            before = shard.clone()
            shard.add_(float(rank == 1))
        with pytest.raises(LeakError, match=found):
            memory.verify()
        with torch.no_grad():
            shard.copy_(before)
    assert memory.verify().worst == 0


def only_the_first_rank_needs_a_folder_to_save(rank: int, ranks: int, folder: Path) -> None:
    model = fully_sharded(Pictures)
    memory, _ = remembering(model)
    memory.consolidate([Pictures.data()[rank::ranks]])
    memory.save((folder if rank == 0 else folder / "nowhere") / "memory.safetensors")
    assert len(GPM.load(folder / "memory.safetensors", model)) == 1
    with pytest.raises(OSError, match="Rank 0 could not write" if rank else "there is no folder"):
        memory.save(folder / "nowhere" / "memory.safetensors")
    assert memory.verify().worst == 0


class Hidden(nn.Module):
    """Reads a weight in a way that no rule covers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other(self.layer(x[:, :12])) + F.linear(x[:, 12:], self.layer.weight).sum(1, keepdim=True)
        return out


def what_cannot_be_protected_is_refused_by_all(rank: int, ranks: int, folder: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    memory = GPM(fully_sharded(Hidden))
    with pytest.raises(ConsolidationError, match="'layer'"):
        memory.consolidate([torch.randn(4, 24)])
    memory = GPM(fully_sharded(Pictures))
    with pytest.raises((ConsolidationError, RuntimeError), match="no batch"):
        memory.consolidate([Pictures.data()] if rank == 0 else [])

    def torn() -> Iterator[Tensor]:
        yield Pictures.data()
        raise OSError("the disk is gone")

    with pytest.raises(OSError if rank else RuntimeError, match="the disk is gone" if rank else "failed to read one"):
        memory.consolidate(torn() if rank else [Pictures.data()] * 2)
    assert len(memory) == 0
    with pytest.raises(UnsupportedError, match="recall=True"):
        GPM(fully_sharded(Pictures), recall=True)
    for whole_parameters in (False, True):
        with pytest.raises(UnsupportedError, match="fully_shard"):
            GPM(FullyShardedDataParallel(Pictures(), device_id=torch.device("cpu"), use_orig_params=whole_parameters))


def parallel(plan: dict[str, Any]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    return parallelize_module(Parallel(), init_device_mesh("cpu", (dist.get_world_size(),)), plan)


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm, self.second, self.head = (
            nn.Linear(6, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.second(self.norm(self.first(x).relu()))))
        return out

    @staticmethod
    def data() -> Tensor:
        return torch.randn(24, 6, generator=torch.Generator().manual_seed(7))


def tensor_parallel_outputs_end_as_one_process(rank: int, ranks: int, folder: Path) -> None:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    columns = ColwiseParallel(output_layouts=Replicate())
    model = parallel({"first": columns, "second": columns})
    memory, optimizer = remembering(model)
    data = Parallel.data()
    assert_as_alone(Parallel, model, memory, two_tasks(model, memory, optimizer, [data], data), folder)
    with pytest.raises(
        UnsupportedError, match=r"'second': tensor parallelism splits the layer's inputs \(RowwiseParallel\)"
    ):
        GPM(parallel({"first": columns, "second": RowwiseParallel()}))
    with pytest.raises(UnsupportedError, match=r"'head': .* unevenly"):
        GPM(parallel({"head": columns}))


class Table(nn.Sequential):
    """An embedding that is split over its vectors, so that each rank has a part of every one."""

    def __init__(self) -> None:
        torch.manual_seed(6)
        super().__init__(nn.Embedding(12, 16), nn.Linear(16, 3))

    @staticmethod
    def data() -> Tensor:
        return torch.randint(0, 6, (24, 5), generator=torch.Generator().manual_seed(8))


def an_embedding_split_over_its_vectors_ends_as_in_one_process(rank: int, ranks: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks,))
    models: list[Any] = [
        parallelize_module(Table(), mesh, {"0": ColwiseParallel(output_layouts=Replicate())}),
        fully_shard(Table(), mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1)),
    ]
    for model in models:
        memory, optimizer = remembering(model)
        drifts = two_tasks(model, memory, optimizer, [Table.data()], Table.data())
        assert_as_alone(Table, model, memory, drifts, folder)


def assert_saved_whole(kind: Any, ranks: int, folder: Path) -> None:
    weights = torch.load(folder / f"{kind.__name__}.pt", weights_only=True)["model"]
    saved = GPM.load(folder / f"{kind.__name__}{ranks}.safetensors", kind()).state_dict()
    assert all(torch.allclose(anchor, weights[name], atol=1e-5) for name, anchor in saved["anchors"].items())


def test_two_ranks_share_the_weights(tmp_path: Path) -> None:
    alone(Tokens, tmp_path)
    alone(Parallel, tmp_path)
    alone(Table, tmp_path)
    checks = [
        partial(fsdp_ends_as_one_process, Tokens),
        a_change_of_one_shard_is_found_by_all,
        only_the_first_rank_needs_a_folder_to_save,
        what_cannot_be_protected_is_refused_by_all,
        tensor_parallel_outputs_end_as_one_process,
        an_embedding_split_over_its_vectors_ends_as_in_one_process,
    ]
    in_ranks(checks, 2, tmp_path)
    assert_saved_whole(Tokens, 2, tmp_path)


def test_four_ranks_share_the_weights(tmp_path: Path) -> None:
    alone(Pictures, tmp_path)
    alone(Parallel, tmp_path)
    in_ranks([partial(fsdp_ends_as_one_process, Pictures), tensor_parallel_outputs_end_as_one_process], 4, tmp_path)
    assert_saved_whole(Pictures, 4, tmp_path)
