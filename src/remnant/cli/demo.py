"""The demo: one network learns five permutations of the digits in three ways."""

import tempfile
import time
from pathlib import Path

from remnant.evaluation import AccuracyMatrix
from remnant.experiments import Plan, resolve, run

from .app import err, out, print_text
from .progress import print_accuracies, show_progress

TITLES = {
    "finetune": "Plain fine-tuning",
    "gpm": "Gradient Projection Memory",
    "multitask": "All tasks at once (upper bound)",
}
PICTURE = Path("demo.png")


def run_demo() -> None:
    """Runs the three methods, prints their accuracies, and draws them to demo.png."""
    start = time.perf_counter()
    matrices: dict[str, AccuracyMatrix] = {}
    for method, title in TITLES.items():
        with tempfile.TemporaryDirectory() as root:
            plan = Plan(resolve("permuted-digits", method), (0,), Path(root), device="cpu")
            with show_progress(err, quiet=not err.is_terminal, title=title) as watch:
                (folder,) = run(plan, watch)
            contents = folder.read()
        assert contents.matrix is not None
        assert contents.result is not None
        out.print()
        if title != TITLES["multitask"]:  # which has only the last row
            matrices[title] = contents.matrix
            print_accuracies(contents.matrix, f"{title}: accuracy, %, after learning each task")
        bwt = contents.result.bwt
        forgotten = "" if bwt is None else f"; {-100 * bwt:.1f} points forgotten"
        print_text(f"{title}: {100 * contents.result.acc:.1f} % on all tasks at the end{forgotten}")
    print_text(f"\nDone in {time.perf_counter() - start:.0f} s. {_draw(matrices)}")


def _draw(matrices: dict[str, AccuracyMatrix]) -> str:
    """Draws the matrices. Returns where the picture is, or why there is none: that is no reason to fail."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "There is no picture: it needs matplotlib (pip install matplotlib)."
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots(1, len(matrices))
    for axis, (title, matrix) in zip(axes, matrices.items(), strict=True):
        values, tasks = 100 * matrix.values, range(matrix.tasks)
        image = axis.imshow(values, vmin=0, vmax=100, cmap="viridis")
        axis.set(title=f"{title}: {values[-1].mean():.0f} % at the end", xlabel="accuracy on task", ylabel="after task")
        axis.set_xticks(tasks, [str(task + 1) for task in tasks])
        axis.set_yticks(tasks, [str(task + 1) for task in tasks])
        for t in tasks:
            for i in range(t + 1):
                colour = "w" if values[t, i] < 60 else "k"
                axis.text(i, t, f"{values[t, i]:.0f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=axes, label="accuracy, %", shrink=0.8)
    try:
        figure.savefig(PICTURE, dpi=110)
    except OSError as error:
        return f"There is no picture: {PICTURE} could not be written here ({error.strerror or error})."
    return f"The picture is {PICTURE}."
