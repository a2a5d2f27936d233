"""LoRA on a vision transformer: five tasks, one adapter of rank 10 after another, and nothing is forgotten.

Each task has its own three textures, and asks whether the first and the last patch of a picture are alike. The transformer is
built from its config, so nothing is downloaded. The same loop runs plain and with Remnant, beside a fresh adapter per task.
Needs `pip install '.[lora]' transformers`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

import remnant

TASKS, STEPS, LR, WIDTH, PATCH = 5, 80, 5e-3, 128, 4


class Network(nn.Module):
    """A vision transformer with a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = ViTConfig(image_size=2 * PATCH, patch_size=PATCH, **sizes)
        self.body = ViTModel(config, add_pooling_layer=False)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(TASKS))

    def forward(self, pictures: Tensor, task: int) -> Tensor:
        return self.heads[task](self.body(pictures).last_hidden_state[:, 0])


def adapted_network() -> Any:
    torch.manual_seed(0)
    model = get_peft_model(Network(), LoraConfig(r=10, target_modules=r".*\.(q_proj|v_proj|query|value)"))
    model.get_base_model().heads.requires_grad_(True)
    return model


def pictures(task: int) -> tuple[Tensor, Tensor]:
    """All pictures of 2 × 2 patches with the task's textures, and whether the first and the last patch are alike."""
    size = 3 * PATCH * PATCH
    textures = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(9))).Q * size**0.5
    choice = torch.tensor(list(product(range(3), repeat=4)))
    x = textures[3 * task + choice].reshape(-1, 2, 2, 3, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5)
    return x.reshape(-1, 3, 2 * PATCH, 2 * PATCH), (choice[:, 0] == choice[:, 3]).long()


def train(model: Any, task: int, memory: remnant.GPM | None = None) -> None:
    model.train()
    x, y = pictures(task)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=LR)
    if memory is not None:
        memory.attach(optimizer)
    for _ in range(STEPS):
        F.cross_entropy(model(x, task), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    if memory is not None:
        memory.verify()
        memory.consolidate([x], forward=lambda model, batch: model(batch, task))  # merges the adapter, starts the next


@torch.no_grad()
def outputs(model: Any, task: int) -> Tensor:
    return model.eval()(pictures(task)[0], task)


def accuracy(predicted: Tensor, task: int) -> float:
    return 100 * float((predicted.argmax(1) == pictures(task)[1]).float().mean())


@dataclass
class Result:
    """One number per task: the accuracy when it was learnt and at the end, and how far its outputs moved in between."""

    learnt: list[float]
    final: list[float]
    drift: list[float]


def learn(protected: bool) -> Result:
    model = adapted_network()
    memory = remnant.GPM(model, 0.9999999, lora="inputs", exclude=["*.heads.*"]) if protected else None
    then = []
    for task in range(TASKS):
        train(model, task, memory)
        then.append(outputs(model, task))
    now = [outputs(model, task) for task in range(TASKS)]
    drift = [float((x - y).norm() / y.norm()) for x, y in zip(now, then, strict=True)]
    learnt, final = ([accuracy(x, task) for task, x in enumerate(each)] for each in (then, now))
    return Result(learnt, final, drift)


def fresh_adapter(task: int) -> float:
    """The accuracy of an adapter that starts from the network without any task."""
    model = adapted_network()
    train(model, task)
    return accuracy(outputs(model, task), task)


def main() -> None:
    torch.set_num_threads(1)  # small layers: a second thread would slow them down
    start = time.perf_counter()
    results = {"plain LoRA": learn(protected=False), "with Remnant": learn(protected=True)}
    print("accuracy in %, drift of the outputs".ljust(38) + "".join(f"  task {task + 1}" for task in range(TASKS)))
    print("a fresh adapter".ljust(38) + "".join(f"{fresh_adapter(task):8.1f}" for task in range(TASKS)))
    for name, result in results.items():
        print(f"{name}, when learnt".ljust(38) + "".join(f"{value:8.1f}" for value in result.learnt))
        print(f"{name}, after all tasks".ljust(38) + "".join(f"{value:8.1f}" for value in result.final))
        print(f"{name}, drift".ljust(38) + "".join(f"{value:8.0e}" for value in result.drift))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
