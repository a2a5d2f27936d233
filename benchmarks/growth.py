"""What it costs as work grows: tasks, layer width and samples, each by itself, on one core; times are of the thread.

    python benchmarks/growth.py [--quick] [--figure docs/figures/cost-growth.svg]

Expected: a step costs the same in any task; consolidation grows with the rows, and with the cube of the width at worst;
memory is what paper says, n·min(k, n − k) numbers for k directions of a layer with n inputs.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from setting import CPU, Setting
from timing import fastest, fastest_stretch, machine, own

from remnant import Subspace
from remnant.accelerated.manual_backward import STEPS_TOGETHER, ManualBackwardSteps
from remnant.memory.subspaces.gram import Gram

Points = list[tuple[int, float]]


def over_tasks(quick: bool) -> tuple[Points, Points]:
    """Permuted digits, an epoch a task: µs a step and ms a consolidation."""
    wanted = (1, 10, 20) if quick else (1, 10, 20, 50, 100)
    setting = Setting("permuted-digits", CPU, f"stream.tasks={wanted[-1]}")
    method = setting.method()
    steps_µs, finish_ms = [], []
    print("\nTasks (permuted digits, 64-100-100-10, batch 10)")
    print(f"{'task':>6} {'step, µs':>9} {'consolidate, ms':>16} {'directions':>11} {'memory, B':>10} {'on paper':>9}")
    for number in range(wanted[-1]):
        train = setting.task(number).train
        method.start(number)
        steps = ManualBackwardSteps(method, train, 10)
        step = min(fastest_stretch(steps.epoch()) for _ in range(5)) / STEPS_TOGETHER
        start = own()
        method.finish(number, train)
        finish = own() - start
        if number + 1 in wanted:
            subspaces = method.memory.subspaces.values()  # type: ignore[attr-defined]
            paper = sum(4 * s.capacity * min(s.rank, s.capacity - s.rank) for s in subspaces)
            rank = sum(s.rank for s in subspaces)
            print(
                f"{number + 1:>6} {1e6 * step:>9.0f} {1e3 * finish:>16.1f} {rank:>11} {method.nbytes:>10,} {paper:>9,}"
            )
            steps_µs.append((number + 1, 1e6 * step))
            finish_ms.append((number + 1, 1e3 * finish))
    return steps_µs, finish_ms


def remembered(chunk: torch.Tensor, times: int = 1) -> None:
    """Rows into a Gram matrix, a thousand at a time, and its leading directions: all of a layer's consolidation."""
    n = chunk.shape[1]
    gram, subspace = Gram(1, n, CPU), Subspace(n, dtype=torch.float32)
    for _ in range(times):
        for rows in chunk.split(1000):
            gram.add(rows.unsqueeze(0))
    subspace.grow(gram.of_group(0), 0.97)


def over_widths(quick: bool) -> Points:
    print("\nWidth n (2·n rows, ε = 0.97)")
    print(f"{'n':>6} {'consolidate, s':>15} {'Gram, MB':>9} {'per doubling':>13}")
    points: Points = []
    for n in (256, 512, 1024) if quick else (256, 512, 1024, 2048, 4096, 8192):
        rows = _rows(2 * n, n)
        seconds = fastest(lambda rows=rows: remembered(rows), 3 if n <= 1024 else 1, own)
        print(f"{n:>6} {seconds:>15.3f} {8 * n * n / 1e6:>9.1f} {_times(points, n, seconds):>13}", flush=True)
        points.append((n, seconds))
    return points


def over_rows(quick: bool) -> Points:
    print("\nRows (n = 256, ε = 0.97)")
    print(f"{'rows':>9} {'consolidate, s':>15} {'times as many':>14}")
    points: Points = []
    for rows in [10**power for power in range(2, 5 if quick else 7)]:
        chunk = _rows(min(rows, 1000), 256)
        times = rows // len(chunk)
        seconds = fastest(lambda chunk=chunk, times=times: remembered(chunk, times), 3 if times <= 100 else 1, own)
        print(f"{rows:>9,} {seconds:>15.4f} {_times(points, rows, seconds):>14}", flush=True)
        points.append((rows, seconds))
    return points


def _rows(count: int, n: int) -> torch.Tensor:
    """Energy falls off as it does in a trained layer, by the same share of the width."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, n, generator=generator) * torch.exp(-8 * torch.arange(n) / n)


def _times(points: Points, x: int, y: float) -> str:
    """The exponent between the last point and this."""
    if not points:
        return ""
    before, of = points[-1]
    return f"×{y / of:.1f} (x^{math.log(y / of) / math.log(x / before):.1f})"


def _short(count: int) -> str:
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def draw(path: Path, tasks: tuple[Points, Points], widths: Points, rows: Points) -> None:
    import matplotlib.pyplot as plt

    from remnant.report.figures.drawing import COLOURS, FAINT, RC

    with plt.rc_context(RC):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
        left.plot(*zip(*tasks[0], strict=True), marker="o", color=COLOURS[0])
        left.set(title="A step", xlabel="task", ylabel="µs", ylim=(0, 2 * max(y for _, y in tasks[0])))
        for axis, points, title, label, power in (
            (middle, widths, "Consolidation by width (2·n rows)", "inputs of the layer, n", 3),
            (right, rows, "Consolidation by rows (n = 256)", "rows", 1),
        ):
            axis.loglog(*zip(*points, strict=True), marker="o", color=COLOURS[0])
            (x, y), ends = points[-1], [points[0][0], points[-1][0]]
            axis.loglog(
                ends,
                [y * (end / x) ** power for end in ends],
                "--",
                color=FAINT,
                label="n³" if power == 3 else "∝ rows",
            )
            axis.set(title=title, xlabel=label, ylabel="s")
            axis.set_xticks([at for at, _ in points], [_short(at) for at, _ in points])
            axis.minorticks_off()
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small sizes only")
    parser.add_argument("--figure", type=Path, help="where to draw it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    tasks, widths, rows = over_tasks(chosen.quick), over_widths(chosen.quick), over_rows(chosen.quick)
    if chosen.figure:
        draw(chosen.figure, tasks, widths, rows)
    steps = [step for _, step in tasks[0]]
    print(f"\nratio {steps[-1] / steps[1]:.2f}: a step of task {tasks[0][-1][0]} against one of task {tasks[0][1][0]}")


if __name__ == "__main__":
    main()
