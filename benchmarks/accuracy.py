"""Whether speed costs accuracy: whole runs of the same seeds with the fastest steps there are, and with plain ones.

    python benchmarks/accuracy.py [pmnist] [--seeds 3] [--set key=value]

Both run on the same device and differ in how steps are taken: sums are rounded in another order. A run amplifies rounding,
so a third line has plain steps too, from first weights that are each off by one rounding: what ACC moves by itself.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
from setting import Setting, best_device, some
from timing import machine, now

from remnant.experiments import run
from remnant.experiments.executor import Plan, execute
from remnant.experiments.settings import Settings

WAYS = {"plain": ("eager", False), "ours": ("auto", False), "plain, nudged": ("eager", True)}


@contextmanager
def nudged() -> Iterator[None]:
    """Meanwhile every first weight of a run is off by one rounding, up or down."""
    build = run.build_method

    def build_nudged(*at: Any) -> Any:
        stream, method = build(*at)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in method.network.parameters():
                signs = 2 * torch.randint(0, 2, parameter.shape, generator=generator) - 1
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * signs.to(parameter))
        return stream, method

    with patch.object(run, "build_method", build_nudged):
        yield


def accuracies(settings: Settings, seeds: int, steps: str) -> tuple[list[float], float]:
    """ACC of every seed in per cent, and seconds for all. One at a time: what is patched here is not in other processes."""
    found, start = [], now()
    with tempfile.TemporaryDirectory() as runs:
        for seed in range(seeds):
            (folder,) = execute(Plan(settings, (seed,), Path(runs), steps=steps), lambda progress: None)
            result = folder.result()
            assert result is not None
            found.append(100 * result["acc"])
    return found, now() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="?", default="pmnist")
    parser.add_argument("--seeds", type=some, default=3)
    parser.add_argument("--set", action="append", default=[], help="key=value, as remnant run takes it")
    chosen = parser.parse_args()
    setting = Setting(chosen.benchmark, best_device(), *chosen.set)
    print(f"{machine()}; on {setting.device}")
    print(f"ACC of {chosen.benchmark}, gpm, {' '.join(chosen.set) or 'as its recipe has it'}, %")
    found, seconds = {}, {}
    for name, (steps, nudge) in WAYS.items():
        with nudged() if nudge else nullcontext():
            found[name], seconds[name] = accuracies(setting.settings, chosen.seeds, steps)
        each = " ".join(f"{acc:7.2f}" for acc in found[name])
        print(f"  {name:<14} {each}   mean {mean(found[name]):7.2f}   {seconds[name]:5.0f} s", flush=True)
    for name in ("plain, nudged", "ours"):
        apart = [a - b for a, b in zip(found[name], found["plain"], strict=True)]
        print(f"  {name}: {mean(apart):+.3f} from plain in the mean, {max(map(abs, apart)):.3f} at most for a seed")
    print(f"ratio {seconds['plain'] / seconds['ours']:.1f}")


if __name__ == "__main__":
    main()
