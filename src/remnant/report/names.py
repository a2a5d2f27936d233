"""What methods and benchmarks are called before readers, and the order they stand in."""

from __future__ import annotations

from collections.abc import Iterable

BENCHMARKS = {
    "pmnist": "Permuted MNIST",
    "split-cifar100": "10-split CIFAR-100",
    "split-miniimagenet": "20-split miniImageNet",
    "five-datasets": "5-Datasets",
    "cifar100-superclass": "CIFAR-100 superclasses",
    "mnist-incremental": "MNIST, class by class",
    "split-tinyimagenet": "20-split Tiny ImageNet",
}
METHODS = {
    "gpm": "GPM",
    "agem": "A-GEM",
    "apd": "APD",
    "den": "DEN",
    "dgdmn": "DGDMN",
    "dgr": "DGR",
    "er": "ER",
    "ewc": "EWC",
    "gem": "GEM",
    "hat": "HAT",
    "mas": "MAS",
    "ogd": "OGD",
    "owm": "OWM",
    "packnet": "PackNet",
    "pgn": "PGN",
    "rcl": "RCL",
    "si": "SI",
    "finetune": "Fine-tuning",
    "multitask": "Joint training",
    "single-task": "A network per task",
}
# They see all tasks at once, or grow a network for each: what can be reached, not a contender (the paper's asterisk).
BOUNDS = ("multitask", "single-task")


def method_title(name: str) -> str:
    return METHODS.get(name, name)


def short_title(name: str) -> str:
    """For figures, where a long name would leave no room for what it names."""
    title = method_title(name)
    return title if len(title) <= 18 else f"{title[:17]}…"


def benchmark_title(name: str) -> str:
    return BENCHMARKS.get(name, name)


def ordered_methods(names: Iterable[str]) -> list[str]:
    """GPM, the others by name, then what bounds them."""
    last = ("finetune", *BOUNDS)
    return sorted(set(names), key=lambda name: (last.index(name) + 1 if name in last else 0, name != "gpm", name))


def ordered_benchmarks(names: Iterable[str]) -> list[str]:
    known = list(BENCHMARKS)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))
