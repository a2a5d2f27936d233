"""Learns on the pretend GPU and on the CPU, and prints as JSON how far they differ: `python learn.py mlp`, or `library`.

`python learn.py remnant run permuted-digits gpm --device cuda` runs a command on it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("", "accelerated", "conformance", "methods")]

from device import pretend_gpu, without_waiting  # noqa: E402  (before torch)

# isort: split
import small_nets  # noqa: E402
import test_default_device as beside  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import remnant  # noqa: E402
from remnant.__main__ import main as remnant_main  # noqa: E402
from remnant.methods import METHODS  # noqa: E402
from remnant.training import cooperative  # noqa: E402
from small_options import OPTIONS, announced  # noqa: E402

ONE_HEAD = ("analytic", "dgr", "dgdmn")
CPU = torch.device("cpu")


def method(name: str, kind: str, device: torch.device) -> list[Tensor]:
    """The logits of each task after three of them. After a task's first step, no step may make the host wait."""
    torch.manual_seed(0)
    net = small_nets.network(kind, classes=3 if name in ONE_HEAD else (3, 3, 3))
    splits = [small_nets.data(kind, seed).to(device) for seed in range(3)]
    learner = announced(METHODS[name](net.to(device), lr=0.05, **OPTIONS.get(name, {})), *splits)
    for task, split in enumerate(splits):
        learner.start(task)
        learner.network.train()
        learner.on_epoch_start(0, 1, 5)
        parts = learner.order(split, 8).split(8)
        learner.step(split.x[parts[0]], split.y[parts[0]])
        for part in parts[1:]:
            x, y = split.x[part], split.y[part]
            with without_waiting():
                learner.step(x, y)
        learner.on_epoch_end()
        learner.network.eval()
        learner.finish(task, split)
    return [learner.logits(split.x, task).detach().cpu() for task, split in enumerate(splits)]


def library(name: str, device: torch.device) -> list[Any]:
    """The weights after two tasks that a memory protects, and what it reports before and after it was saved."""
    torch.manual_seed(1)
    batches = [torch.rand(30, 1, 8, 8) for _ in range(2)]
    model = beside.network().to(device)
    memory = remnant.GPM(model, threshold=0.9, **beside.OPTIONS[name])
    beside.learn(memory, model, [batch.to(device) for batch in batches])
    memory.verify(batches)  # a loader's batches are on the CPU
    with tempfile.TemporaryDirectory() as folder:
        memory.save(Path(folder) / "memory")
        loaded = remnant.GPM.load(Path(folder) / "memory", model)
    assert str(loaded.report()) == str(memory.report())
    outputs = []
    if beside.OPTIONS[name].get("recall"):
        with memory.recall(0):
            outputs.append(model(batches[0].to(device)).detach().cpu())
    return [*outputs, *(tensor.cpu() for tensor in model.state_dict().values())]


def difference(learn: Callable[[torch.device], list[Tensor]]) -> float | str:
    """The largest difference between the two devices, or the error on the GPU."""
    on_cpu = learn(CPU)
    try:
        with pretend_gpu() as device:
            on_gpu = learn(device)
    except Exception:
        return traceback.format_exc(limit=-6)
    return max(float((x.double() - y.double()).abs().max()) for x, y in zip(on_cpu, on_gpu, strict=True))


def faults(gpu: torch.device) -> dict[str, bool]:
    """Whether errors of a real GPU are errors here."""
    x, own = torch.zeros(3, device=gpu), torch.Generator().manual_seed(0)
    tries: dict[str, Callable[[], Any]] = {
        "two devices": lambda: x + torch.zeros(3),
        "numpy": x.numpy,
        "another device's generator": lambda: torch.rand(3, device=gpu, generator=own),
        "a branch on a value": lambda: bool(x.sum() > 0),
        "a copy to the host": x.cpu,
    }
    caught = {}
    for name, fault in tries.items():
        try:
            with without_waiting():
                fault()
            caught[name] = False
        except (RuntimeError, TypeError):
            caught[name] = True
    return caught


def command(words: list[str]) -> None:
    """Runs the command. Its random numbers are those of the CPU, whose generator graphs need not know."""
    random_state = cooperative.RandomState.__init__
    with ExitStack() as stack:
        on_cpu = mock.patch.object(
            cooperative.RandomState, "__init__", lambda self, seed, _: random_state(self, seed, CPU)
        )
        for context in (on_cpu, mock.patch.object(sys, "argv", words), pretend_gpu()):
            stack.enter_context(context)
        remnant_main()


def main(what: str, *words: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if what == "remnant":
        return command([what, *words])
    if what == "faults":
        with pretend_gpu() as gpu:
            return print(json.dumps(faults(gpu)))
    if what == "library":
        found = {name: difference(lambda device, name=name: library(name, device)) for name in beside.OPTIONS}
    else:
        found = {name: difference(lambda device, name=name: method(name, what, device)) for name in METHODS}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
