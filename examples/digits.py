"""Five tasks, one network: scikit-learn's digits under five pixel permutations, learnt one after another.

The same loop runs twice, plain and with Remnant's import and three lines. Prints both accuracy matrices.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import remnant

TASKS, EPOCHS, BATCH = 5, 15, 10


def tasks() -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """(train, test) of each task: the same digits, each time under another permutation of the pixels."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    rng = np.random.default_rng(0)
    order = torch.tensor(rng.permutation(len(x)))
    x, y = x[order], y[order]
    permuted = [x[:, torch.tensor(rng.permutation(64))] for _ in range(TASKS)]
    return [((p[:1440], y[:1440]), (p[1440:], y[1440:])) for p in permuted]


def learn(protected: bool) -> np.ndarray:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    if protected:
        memory = remnant.GPM(model, threshold=0.98)
        memory.attach(optimizer)
    matrix = np.full((TASKS, TASKS), np.nan)
    stream = tasks()
    for t, ((x, y), _) in enumerate(stream):
        for _ in range(EPOCHS):
            for part in torch.randperm(len(x)).split(BATCH):
                F.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
                optimizer.zero_grad()
        if protected:
            memory.verify()
            memory.consolidate(x.split(100))
        for i, (_, (x_test, y_test)) in enumerate(stream[: t + 1]):
            matrix[t, i] = (model(x_test).argmax(1) == y_test).float().mean()
    if protected:
        print(f"\n{memory.report()}")
    return matrix


def show(title: str, matrix: np.ndarray) -> None:
    """Rows: after learning task t. Columns: accuracy on task i. Shaded where there is a terminal to shade."""
    colour = sys.stdout.isatty()
    print(f"\n{title}")
    print("         " + "".join(f" task {i + 1}" for i in range(TASKS)))
    for t, row in enumerate(matrix):
        cells = []
        for value in row:
            text = "       " if np.isnan(value) else f" {100 * value:5.1f} "
            shade = 22 if value > 0.9 else 58 if value > 0.75 else 94 if value > 0.5 else 88
            cells.append(f"\033[48;5;{shade}m{text}\033[0m" if colour and not np.isnan(value) else text)
        print(f"after {t + 1}  " + "".join(cells))
    last, diagonal = matrix[-1], np.diag(matrix)
    print(
        f"average accuracy {100 * last.mean():.1f} %   backward transfer {100 * (last - diagonal)[:-1].mean():+.1f} points"
    )


def main() -> None:
    torch.set_num_threads(1)  # small layers: a second thread would slow them down
    start = time.perf_counter()
    plain = learn(protected=False)
    kept = learn(protected=True)
    show("Plain fine-tuning", plain)
    show("With Remnant (an import and three lines more)", kept)
    gain = 100 * (kept[-1].mean() - plain[-1].mean())
    seconds = time.perf_counter() - start
    print(f"\n{gain:+.1f} points of average accuracy after {TASKS} tasks, in {seconds:.0f} s for both.")


if __name__ == "__main__":
    main()
