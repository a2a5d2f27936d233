"""A whole benchmark, from the first task to the last: five seeds together with ours, and the plain way beside it.

    python benchmarks/whole_run.py pmnist | split-cifar100 | five-datasets [--seeds 5] [--plain-tasks 2] [--set key=value]
        [--runs FOLDER]

The plain way takes an hour for all of it, so it learns a few tasks, one epoch each, with evaluation and consolidation as in a
run; its steps are then counted as often as ours took them. The ratio is per seed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from setting import Setting, best_device, some
from timing import machine, now

from remnant.experiments.execute import Plan, run
from remnant.experiments.settings import resolve


def ours(benchmark: str, seeds: int, overrides: tuple[str, ...], runs: Path | None) -> tuple[float, float]:
    """Seconds for all seeds, and steps a seed took."""
    with tempfile.TemporaryDirectory() as nowhere:
        plan = Plan(resolve(benchmark, "gpm", overrides), tuple(range(seeds)), runs or Path(nowhere))
        if any(plan.folder(seed).finished for seed in plan.seeds):
            raise SystemExit(
                f"{runs} holds these runs already, and would time nothing: name another folder with --runs."
            )
        start = now()
        folders = run(plan, lambda progress: None)
        seconds = now() - start
        results = [folder.result() for folder in folders]
        steps = statistics.mean(sum(line["steps"] for line in folder.metrics()) for folder in folders)
    for name in ("acc", "bwt"):
        values = [result[name] for result in results if result]
        print(f"  {name.upper()} {100 * statistics.mean(values):.2f} % over {len(values)} seed(s)")
    return seconds, steps


def plain(setting: Setting, tasks: int) -> dict[str, float]:
    """Seconds of a step (with its share of an epoch's validation), of a task's consolidation and of one test set."""
    reference = setting.reference()
    batch = setting.settings.training["evaluation_batch"]
    spent: dict[str, list[float]] = {"step": [], "consolidation": [], "test": []}
    for number in range(tasks):
        task = setting.task(number)
        start = now()
        steps = sum(1 for _ in reference.epoch(task.train.x, task.train.y, setting.batch))
        if len(task.valid):
            reference.evaluate(task.valid.x, task.valid.y, number, batch)
        spent["step"].append((now() - start) / steps)
        start = now()
        reference.finish(task.train.x)
        spent["consolidation"].append(now() - start)
        start = now()
        reference.evaluate(task.test.x, task.test.y, number, batch)
        spent["test"].append(now() - start)
    spent["step"] = spent["step"][1:] or spent["step"]  # the first task has nothing to project, and warms up
    return {what: statistics.mean(times) for what, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--seeds", type=some, default=5)
    parser.add_argument("--plain-tasks", type=some, default=2)
    parser.add_argument("--set", action="append", default=[], help="key=value, as remnant run takes it")
    parser.add_argument("--runs", type=Path, help="leave the runs in this folder; it must not hold them yet")
    chosen = parser.parse_args()
    overrides = tuple(chosen.set)
    setting = Setting(chosen.benchmark, best_device(), *overrides)
    tasks = len(setting.stream)
    print(f"{machine()}; on {setting.device}")
    print(f"{chosen.benchmark}, gpm, {tasks} tasks, {chosen.seeds} seed(s) together")
    seconds, steps = ours(chosen.benchmark, chosen.seeds, overrides, chosen.runs)
    each = plain(setting, min(chosen.plain_tasks, tasks))
    whole = steps * each["step"] + tasks * each["consolidation"] + tasks * (tasks + 1) / 2 * each["test"]
    print(f"  ours: {seconds:.1f} s for all, {seconds / chosen.seeds:.2f} s a seed ({steps:,.0f} steps a seed)")
    print(f"  the plain way: {whole:.0f} s a seed ({', '.join(f'{what} {each[what]:.3g} s' for what in each)})")
    print(f"ratio {whole / (seconds / chosen.seeds):.0f}")


if __name__ == "__main__":
    main()
