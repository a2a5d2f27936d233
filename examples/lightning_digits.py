"""Five tasks with Lightning: scikit-learn's digits under five pixel permutations, learnt one after another.

The same module and Trainer run twice, plain and with Remnant's callback. Prints both accuracy matrices.
"""

from __future__ import annotations

import logging
import time
import warnings

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from remnant.integrations.lightning import GPMCallback

TASKS, EPOCHS, BATCH = 5, 8, 32


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def tasks() -> list[tuple[TensorDataset, TensorDataset]]:
    """(train, test) of each task: the same digits, each time under another permutation of the pixels."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    rng = np.random.default_rng(0)
    order = torch.tensor(rng.permutation(len(x)))
    x, y = x[order], y[order]
    permuted = [x[:, torch.tensor(rng.permutation(64))] for _ in range(TASKS)]
    return [(TensorDataset(p[:1440], y[:1440]), TensorDataset(p[1440:], y[1440:])) for p in permuted]


def learn(*callbacks: L.Callback) -> np.ndarray:
    L.seed_everything(0, verbose=False)
    model = Digits()
    matrix = np.full((TASKS, TASKS), np.nan)
    stream = tasks()
    for t, (train, _) in enumerate(stream):
        trainer = L.Trainer(
            max_epochs=EPOCHS,
            callbacks=list(callbacks),  # the same callback in every task
            accelerator="cpu",
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(train, batch_size=BATCH, shuffle=True))
        model.eval()
        with torch.no_grad():
            for i, (_, test) in enumerate(stream[: t + 1]):
                x, y = test.tensors
                matrix[t, i] = (model(x).argmax(1) == y).float().mean()
    return matrix


def show(title: str, matrix: np.ndarray) -> None:
    print(f"\n{title}: accuracy on each task, after each task")
    for row in matrix:
        print(" ".join("      " if np.isnan(value) else f"{100 * value:5.1f} " for value in row))
    print(f"average accuracy {100 * matrix[-1].mean():.1f} %")


def main() -> None:
    torch.set_num_threads(1)  # small layers: a second thread would slow them down
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    start = time.perf_counter()
    plain = learn()
    gpm = GPMCallback(threshold=0.98)
    kept = learn(gpm)
    show("Plain fine-tuning", plain)
    show("With GPMCallback", kept)
    print(f"\n{gpm.memory.report()}")
    gain = 100 * (kept[-1].mean() - plain[-1].mean())
    print(
        f"\n{gain:+.1f} points of average accuracy after {TASKS} tasks, in {time.perf_counter() - start:.0f} s for both."
    )


if __name__ == "__main__":
    main()
