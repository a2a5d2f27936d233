"""Task-, class- and domain-incremental learning on scikit-learn's digits, plain and with Remnant: which head to use.

In the first two kinds of stream each task has two digits; in the third it has all digits, under a permutation of the pixels.
Prints the average accuracy when each task was learnt, and after all tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import remnant

TASKS, EPOCHS, BATCH, WIDTH = 5, 15, 32, 100
KINDS = ("task-incremental", "class-incremental", "domain-incremental")


class Network(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(WIDTH, outputs)])

    def forward(self, x: Tensor, head: int = 0) -> Tensor:
        return self.heads[head](self.body(x))


@dataclass
class Task:
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    head: int = 0


def tasks(kind: str, seed: int) -> Iterator[Task]:
    digits = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits.data))
    x = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[order])
    for t in range(TASKS):
        if kind == "domain-incremental":
            pixels = torch.tensor(rng.permutation(64))
            yield Task(x[:1440, pixels], y[:1440], x[1440:, pixels], y[1440:])
            continue
        train, test = ((part // 2 == t).nonzero()[:, 0] for part in (y[:1440], y[1440:]))
        test = test + 1440
        if kind == "class-incremental":
            yield Task(x[train], y[train], x[test], y[test])
        else:  # labels count from 0 in each head
            yield Task(x[train], y[train] - 2 * t, x[test], y[test] - 2 * t, head=t)


def learn(kind: str, protected: bool, seed: int = 0) -> tuple[float, float]:
    """Returns the average accuracy in % when each task was learnt, and after all tasks."""
    torch.manual_seed(seed)
    per_task = kind == "task-incremental"
    model = Network(2 if per_task else 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if protected:
        memory = remnant.GPM(model, threshold=0.97, exclude=["heads.*"] if per_task else [])
        memory.attach(optimizer)
    seen: list[Task] = []
    learnt = []
    for task in tasks(kind, seed):
        if task.head == len(model.heads):  # a new head, which the pattern "heads.*" leaves free
            model.heads.append(nn.Linear(WIDTH, 2))
            optimizer.add_param_group({"params": model.heads[-1].parameters()})
        for _ in range(EPOCHS):
            for part in torch.randperm(len(task.x)).split(BATCH):
                F.cross_entropy(model(task.x[part], task.head), task.y[part]).backward()
                optimizer.step()
                optimizer.zero_grad()
        if protected:
            memory.verify()
            memory.consolidate(task.x.split(100), forward=lambda model, x, head=task.head: model(x, head))
        seen.append(task)
        learnt.append(accuracy(model, task))
    return sum(learnt) / TASKS, sum(accuracy(model, task) for task in seen) / TASKS


@torch.no_grad()
def accuracy(model: Network, task: Task) -> float:
    return 100 * float((model(task.x_test, task.head).argmax(1) == task.y_test).float().mean())


def main() -> None:
    torch.set_num_threads(1)  # small layers: a second thread would slow them down
    start = time.perf_counter()
    print(f"{'accuracy in %':<34}when learnt  after all {TASKS} tasks")
    for kind in KINDS:
        for protected in (False, True):
            learnt, final = learn(kind, protected)
            print(f"{kind + (', Remnant' if protected else ', plain'):<34}{learnt:11.1f}  {final:9.1f}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
