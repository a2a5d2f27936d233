"""What protection adds to a training step: AlexNet on split CIFAR-100 and ResNet-18 on five-datasets, batch 64.

    python benchmarks/protection_share.py [--learnt 1]

On a GPU our steps are captured, and gpm's second task is timed against fine-tuning's; on a CPU they are eager. Beside it the
plain way with its dense projectors and without.
"""

from __future__ import annotations

import argparse

import torch
from setting import Setting, best_device, some
from timing import machine, now

from remnant.accelerated.cuda_graph import CapturedSteps
from remnant.data import Split
from remnant.methods import Method
from remnant.training import EagerSteps, run_to_completion

STREAMS = {"AlexNet": "split-cifar100", "ResNet-18": "five-datasets"}
ROUNDS = 5


def through(work: object) -> None:
    for start in work:  # type: ignore[attr-defined]
        if callable(start):
            start()


def per_step(work: object, count: int) -> float:
    start = now()
    through(work)
    return (now() - start) / count


def learnt(setting: Setting, tasks: int, rows: int) -> tuple[Method, Method, object]:
    """Gpm and the reference with so many tasks remembered after an epoch each, and fine-tuning with the same weights."""
    gpm, bare, plain = setting.method(), setting.method("finetune"), setting.reference()
    for number in range(tasks):
        train = setting.task(number).train
        gpm.start(number)
        through(EagerSteps(gpm, Split.of(train.x[:rows], train.y[:rows]), setting.batch).epoch())
        plain.network.load_state_dict(gpm.network.state_dict())
        for finish in (lambda n=number, t=train: gpm.finish(n, t), lambda t=train: plain.finish(t.x)):
            torch.manual_seed(number)
            finish()
    bare.network.load_state_dict(gpm.network.state_dict())
    return gpm, bare, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learnt", type=some, default=1, help="tasks remembered before (default 1; at most 9 and 4)")
    parser.add_argument("--steps", type=some, default=60, help="steps in a row that are timed")
    chosen = parser.parse_args()
    device = best_device()
    kind = CapturedSteps if device.type == "cuda" else EagerSteps
    print(f"{machine()}; on {device}; {chosen.learnt} task(s) remembered")
    print(
        f"{'':<10} {'bare, µs':>9} {'protected':>10} {'share':>7}   {'plain: bare':>12} {'protected':>10} {'share':>7}"
    )
    shares = []
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))  # nothing can be captured on the default one
    for name, benchmark in STREAMS.items():
        setting = Setting(benchmark, device)
        tasks = min(chosen.learnt, len(setting.stream) - 1)
        rows = setting.batch * chosen.steps
        gpm, bare, plain = learnt(setting, tasks, rows)
        train = setting.task(tasks).train
        part = Split.of(train.x[:rows], train.y[:rows])
        taken = {}
        for what, method in (("bare", bare), ("protected", gpm)):
            method.start(tasks)
            steps = kind(method, part, setting.batch)
            if isinstance(steps, CapturedSteps):
                run_to_completion(steps.capture())
            taken[what] = steps
        times: dict[str, list[float]] = {"bare": [], "protected": [], "plain bare": [], "plain protected": []}
        projectors = plain.projectors  # type: ignore[attr-defined]
        for _ in range(ROUNDS + 1):  # the first warms up
            for what, steps in taken.items():
                times[what].append(per_step(steps.epoch(), steps.count))
            for what, given in (("plain bare", {}), ("plain protected", projectors)):
                plain.projectors = given  # type: ignore[attr-defined]
                work = plain.epoch(part.x, part.y, setting.batch)  # type: ignore[attr-defined]
                times[what].append(per_step(work, taken["bare"].count))
        b, p, plain_b, plain_p = (1e6 * min(measured[1:]) for measured in times.values())
        share, plain_share = p / b - 1, plain_p / plain_b - 1
        shares.append(f"{name} {share:.1%}, plain {plain_share:.1%}")
        print(f"{name:<10} {b:>9.0f} {p:>10.0f} {share:>7.1%}   {plain_b:>12.0f} {plain_p:>10.0f} {plain_share:>7.1%}")
    print("share of a step: " + "; ".join(shares))


if __name__ == "__main__":
    main()
