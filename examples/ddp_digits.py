"""Several processes train one model: torchrun --nproc-per-node 2 examples/ddp_digits.py

Every process holds a part of each task. The memory sums up what all of them saw, so that they end with the same bases. Three
permutations of scikit-learn's digits, on CPUs; on GPUs use the backend "nccl" and move model and data to the process's device.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import remnant

TASKS, EPOCHS = 3, 8


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train()  # a function of its own: the model must be gone before its process group, or torch may deadlock
    dist.destroy_process_group()


def train() -> None:
    torch.manual_seed(0)  # the same network in every process
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    memory = remnant.GPM(model, threshold=0.98)
    memory.attach(optimizer)

    digits = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits.data))
    x, y = torch.tensor(digits.data[order] / 16, dtype=torch.float32), torch.tensor(digits.target[order])
    permutations = [torch.tensor(rng.permutation(64)) for _ in range(TASKS)]
    for number, pixels in enumerate(permutations):
        data = TensorDataset(x[:1440, pixels], y[:1440])
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=16, sampler=sampler)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for inputs, labels in loader:
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
        memory.verify()
        memory.consolidate(loader)  # on every rank, each with its part of the data
        if dist.get_rank() == 0:
            with torch.no_grad():
                found = [(model.module(x[1440:, p]).argmax(1) == y[1440:]).float().mean() for p in permutations]
            print(f"after task {number + 1}: " + " ".join(f"{100 * a:5.1f} %" for a in found[: number + 1]), flush=True)
    bases = [subspace.basis for subspace in memory.subspaces.values()]
    first = [basis.clone() for basis in bases]
    for basis in first:
        dist.broadcast(basis, src=0)
    assert all(map(torch.equal, bases, first)), "the processes remember different directions"
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes hold the same {sum(basis.shape[1] for basis in bases)} directions.")


if __name__ == "__main__":
    main()
