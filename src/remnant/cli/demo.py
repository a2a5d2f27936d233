"""The demo: one network, five permutations of the digits, learnt three ways."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console

from remnant.evaluation import AccuracyMatrix
from remnant.experiments.execute.plan import Plan, execute
from remnant.experiments.settings.resolve import resolve

from . import tables as show
from .progress import watching

WAYS = {
    "finetune": "Plain fine-tuning",
    "gpm": "Gradient Projection Memory",
    "multitask": "All tasks at once (upper bound)",
}
PICTURE = Path("demo.png")


def run(out: Console, err: Console) -> None:
    start = time.perf_counter()
    matrices: dict[str, AccuracyMatrix] = {}
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as root:
        for method, title in WAYS.items():
            plan = Plan(resolve("permuted-digits", method), (0,), Path(root), device="cpu")
            with watching(err, quiet=not err.is_terminal, title=title) as watch:
                (folder,) = execute(plan, watch)
            matrix, result = folder.matrix(), folder.result()
            assert matrix is not None
            assert result is not None
            matrices[title], results[title] = matrix, result
    for title, matrix in matrices.items():
        out.print()
        if title != WAYS["multitask"]:
            show.accuracies(out, matrix, f"{title}: accuracy, %, after learning each task")
        result = results[title]
        forgot = (
            ""
            if result["bwt"] is None or result["bwt"] != result["bwt"]
            else f"; {-100 * result['bwt']:.1f} points forgotten"
        )
        out.print(
            f"{title}: {100 * result['acc']:.1f} % on all tasks at the end{forgot}", highlight=False, soft_wrap=True
        )
    picture = _draw({title: m for title, m in matrices.items() if title != WAYS["multitask"]})
    out.print(f"\n{time.perf_counter() - start:.0f} s. {picture}", highlight=False, soft_wrap=True, markup=False)


def _draw(matrices: dict[str, AccuracyMatrix]) -> str:
    """Draws them, and says where; or why not, for a picture is no reason to fail."""
    try:
        import matplotlib
    except ImportError:
        return "No picture: that needs matplotlib (pip install 'remnant[report]')."
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(matrices), figsize=(9, 4.2), layout="constrained")
    for axis, (title, matrix) in zip(axes, matrices.items(), strict=True):
        values = 100 * matrix.values
        image = axis.imshow(values, vmin=0, vmax=100, cmap="viridis")
        axis.set(title=f"{title}: {values[-1].mean():.0f} % at the end", xlabel="accuracy on task", ylabel="after task")
        numbers = range(matrix.tasks)
        axis.set_xticks(numbers, [str(n + 1) for n in numbers])
        axis.set_yticks(numbers, [str(n + 1) for n in numbers])
        for t in numbers:
            for i in range(t + 1):
                axis.text(
                    i, t, f"{values[t, i]:.0f}", ha="center", va="center", color="w" if values[t, i] < 60 else "k"
                )
    figure.colorbar(image, ax=axes, label="accuracy, %", shrink=0.8)
    try:
        figure.savefig(PICTURE, dpi=110)
    except OSError as error:
        return f"No picture: {PICTURE} could not be written here ({error.strerror or error})."
    finally:
        plt.close(figure)
    return f"Picture: {PICTURE}"
