"""Remembering a task of split CIFAR-100, all layers: ours against patches cut out in Python and numpy's SVD.

python benchmarks/consolidation.py [--cpu]
"""

from __future__ import annotations

import argparse
from copy import deepcopy

import torch
from setting import CPU, Setting, best_device
from timing import fastest, machine, now

from remnant.training import EagerSteps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="on the CPU even where there is a GPU")
    device = CPU if parser.parse_args().cpu else best_device()
    setting = Setting("split-cifar100", device)
    ours, plain = setting.method(), setting.reference()
    print(f"{machine()}; on {device}")
    print("Consolidation of a split CIFAR-100 task (AlexNet, all layers), s")
    print(f"{'task':>5} {'plain':>8} {'ours':>8} {'ratio':>7}   directions held: plain, ours")
    ratio = 0.0
    for number in range(3):
        train = setting.task(number).train
        ours.start(number)
        for _ in EagerSteps(ours, train, setting.batch).epoch():  # a network that has learnt something
            pass
        plain.network.load_state_dict(ours.network.state_dict())
        state = deepcopy(ours.state_dict())

        def back(state: dict[str, object] = state) -> None:
            ours.load_state_dict(state)
            torch.manual_seed(0)  # the same samples for both

        def finish(number: int = number, train: object = train) -> None:
            back()
            ours.finish(number, train)  # type: ignore[arg-type]

        loading = fastest(back, 3)
        fast = fastest(finish, 3) - loading
        torch.manual_seed(0)
        start = now()
        plain.finish(train.x)
        slow = now() - start
        ratio = slow / fast
        directions = sum(b.shape[1] for b in plain.bases.values()), sum(sum(a) for a in ours.ranks().values())
        print(
            f"{number + 1:>5} {slow:>8.2f} {fast:>8.3f} {ratio:>6.1f}×   {directions[0]}, {directions[1]}", flush=True
        )
    print(f"ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
