"""Weak scaling of runs on the CPU: one, two and four workers with one run each, in processes and on Ray.

python benchmarks/scale.py [--workers 1 2 4] [--epochs 60] [--tries 3] [--places here ray]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from remnant.experiments import Plan, resolve, run


def seconds(place: str, workers: int, epochs: int) -> tuple[float, float]:
    """The wall time of as many runs as workers, and the mean time that a run spent training and testing."""
    settings = resolve("permuted-digits", "gpm", [f"training.epochs={epochs}"])
    with tempfile.TemporaryDirectory() as root:
        plan = Plan(settings, tuple(range(workers)), Path(root), "cpu", workers, on=place)
        start = time.perf_counter()
        folders = run(plan)
        wall = time.perf_counter() - start
        return wall, sum(sum((folder.result() or {})["seconds"].values()) for folder in folders) / workers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--tries", type=int, default=3, help="the fastest counts")
    parser.add_argument("--places", nargs="+", default=["here", "ray"])
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}")
    if "ray" in options.places:
        import ray

        ray.init(
            "local", num_cpus=max(options.workers), include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
    print("place  workers  wall s  of it a run s  runs a minute")
    cells = [(place, workers) for place in options.places for workers in options.workers]
    fastest: dict[tuple[str, int], tuple[float, float]] = {}
    for _ in range(options.tries):  # in turn, so that a busy minute of the machine spoils one try of each
        for place, workers in cells:
            found = seconds(place, workers, options.epochs)
            fastest[place, workers] = min(fastest.get((place, workers), found), found)
    for (place, workers), (wall, each) in fastest.items():
        print(f"{place:5}  {workers:7}  {wall:6.1f}  {each:13.1f}  {60 * workers / wall:13.2f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":  # each run has its own process, which imports this file
    main()
