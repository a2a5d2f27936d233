"""Whether speed costs accuracy: whole runs of the same seeds with the fastest steps there are, and with plain ones.

    python benchmarks/accuracy.py [pmnist] [--seeds 3] [--set key=value]

All run on the same device, a process each, in float32, and differ in how steps are taken: sums are rounded in another order.
A run amplifies rounding, so a third line has plain steps too, from first weights that are each off by one rounding: what ACC
moves by itself. Of a mean over seeds the standard error is given as well; a difference below two of them says nothing.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import torch
from setting import Setting, best_device, some
from timing import machine, now

from remnant.experiments.execute import Plan, run
from remnant.experiments.execute import one_run as one_run_module
from remnant.experiments.settings import Settings

WAYS = {"plain": ("eager", False), "ours": ("auto", False), "plain, nudged": ("eager", True)}


@contextmanager
def nudged() -> Iterator[None]:
    """Meanwhile every first weight of a run is off by one rounding, up or down."""
    build = one_run_module.build_method

    def build_nudged(*at: Any) -> Any:
        stream, method = build(*at)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in method.network.parameters():
                signs = 2 * torch.randint(0, 2, parameter.shape, generator=generator) - 1
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * signs.to(parameter))
        return stream, method

    with patch.object(one_run_module, "build_method", build_nudged):
        yield


def one_run(settings: Settings, steps: str, nudge: bool, seed: int) -> tuple[float, float]:
    """ACC in per cent, and seconds."""
    start = now()
    with tempfile.TemporaryDirectory() as runs, nudged() if nudge else nullcontext():
        (folder,) = run(Plan(settings, (seed,), Path(runs), tf32=False, steps=steps), lambda progress: None)
        result = folder.result()
    assert result is not None
    return 100 * float(result["acc"]), now() - start


def apart(found: list[float], plain: list[float]) -> str:
    differences = [a - b for a, b in zip(found, plain, strict=True)]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    most = max(map(abs, differences))
    return f"{mean(differences):+.3f} ± {error:.3f} from plain in the mean, {most:.3f} at most for a seed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="?", default="pmnist")
    parser.add_argument("--seeds", type=some, default=3)
    parser.add_argument("--set", action="append", default=[], help="key=value, as remnant run takes it")
    chosen = parser.parse_args()
    setting = Setting(chosen.benchmark, best_device(), *chosen.set)
    print(f"{machine()}; on {setting.device}")
    print(f"ACC of {chosen.benchmark}, gpm, {' '.join(chosen.set) or 'as its recipe has it'}, %")
    found: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    workers = min(chosen.seeds, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for name, (steps, nudge) in WAYS.items():
            runs = list(pool.map(partial(one_run, setting.settings, steps, nudge), range(chosen.seeds)))
            found[name], seconds[name] = [acc for acc, _ in runs], mean(time for _, time in runs)
            each = " ".join(f"{acc:7.2f}" for acc in found[name])
            print(f"  {name:<14} {each}   mean {mean(found[name]):7.2f}   {seconds[name]:5.1f} s a seed", flush=True)
    for name in ("plain, nudged", "ours"):
        print(f"  {name}: {apart(found[name], found['plain'])}")
    print(f"ratio {seconds['plain'] / seconds['ours']:.1f}")


if __name__ == "__main__":
    main()
