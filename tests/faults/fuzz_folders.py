"""Run folders with wrongly typed or damaged files, and forged checkpoints with a valid checksum."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fuzz import Counts, damaged, fuzzer, outcome

from remnant.experiments import paper
from remnant.experiments.execute import Plan, Progress, run, unfinished
from remnant.experiments.paper.reproduce import finished_results
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import resolve
from remnant.report.records import read_runs

FEW = ("stream.tasks=2", "training.epochs=2", "training.batch=100", "network.hidden=[8]")
TEXTS = ["null", "true", "-1", "0", "1.5", "1e999", "-1e999", "NaN", "Infinity", "1" * 400, "1" * 5000, '""', '"x"']
TEXTS += [
    '"\\ud800"',
    '"own.py:x"',
    '"../../x"',
    "[]",
    "{}",
    "[null]",
    "[[]]",
    '{"a": null}',
    "[1e999]",
    "9007199254740993",
]
TEXTS += [
    f'"{"x" * 5000}"',
    "[" * 60 + "]" * 60,
    "[" * 900 + "]" * 900,
    "[" * 5000 + "]" * 5000,
    '{"a":' * 900 + "1" + "}" * 900,
]
MARK = "\0replaced\0"


class _InterruptedError(Exception):
    pass


def _interrupt(progress: Progress) -> None:
    if progress.row:
        raise _InterruptedError


@cache
def _example() -> tuple[Path, dict[Path, bytes]]:
    """A folder with a finished and an interrupted run to damage, one of each to leave alone, and all of their files."""
    root = Path(tempfile.mkdtemp()) / "runs"
    for method in ("gpm", "finetune"):
        for seed in (0, 1):
            plan = Plan(resolve("permuted-digits", method, FEW), (seed,), root, "cpu", drift=True)
            run(replace(plan, root=root.parent / "whole"))
            with suppress(_InterruptedError):
                run(plan, _interrupt if seed else None)
    return root, {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside nested dicts and lists."""
    if path:
        yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(part, (*path, key))


def _retyped(text: str, dice: random.Random) -> str:
    """A JSON document in which one value is replaced, removed or moved to another name."""
    content = json.loads(text)
    *above, last = dice.choice(list(_places(content)))
    parent = content
    for key in above:
        parent = parent[key]
    kind = dice.choice(("replace", "replace", "replace", "remove", "rename"))
    if kind == "replace":
        parent[last] = MARK
    else:
        value = parent.pop(last)
        if kind == "rename" and isinstance(parent, dict):
            parent[f"{last}2"] = value
    return json.dumps(content).replace(json.dumps(MARK), dice.choice(TEXTS))


def _spoil(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    if path.suffix not in (".json", ".jsonl") or dice.random() < 0.25:
        path.write_bytes(damaged(data, dice))
    elif path.suffix == ".jsonl":
        lines = data.decode().splitlines()
        number = dice.randrange(len(lines))
        lines[number] = _retyped(lines[number], dice)
        path.write_bytes("\n".join([*lines, ""]).encode(errors="surrogatepass"))
    else:
        path.write_bytes(_retyped(data.decode(), dice).encode(errors="surrogatepass"))


def _seen(root: Path, kept: Path) -> dict[str, Any]:
    """What `resume`, `reproduce`, `report` and `keep` make of a folder of runs."""
    plans, problems = unfinished(root, "cpu", 1)
    results, more = finished_results([root])
    reading = read_runs([root])
    message, others = paper.keep(root, kept)
    assert all(isinstance(text, str) and "\n" not in text for text in [*problems, *more, *others, message])
    # Digests name settings, so a result under an edited digest is no result of the original settings.
    values = {
        **{
            ("resume", plan.settings.method, plan.settings.digest, s): plan.execution
            for plan in plans
            for s in plan.seeds
        },
        **{("reproduce", key, seed): result for key, seeds in results.items() for seed, result in seeds.items()},
        **{("report", run.key): (run.matrix and run.matrix.to_csv(), run.result) for run in reading.runs},
        **{("keep", path.relative_to(kept).parent): path.read_bytes() for path in kept.rglob("accuracy.csv")},
    }
    return {"values": values, "complaints": len(problems) + len(more) + len(others) + len(reading.damaged)}


def _same_end(work: Path, plan: Plan) -> bool:
    """Resumes a run; whether it ends as an unbroken one does."""
    (folder,) = run(plan)
    (whole,) = (path for path in _example()[0].parent.glob(f"whole/*/gpm/{folder.digest}/seed1/accuracy.csv"))
    return (folder.path / "accuracy.csv").read_bytes() == whole.read_bytes()


@fuzzer("run folders", 1000)
def run_folders(seed: int, count: int) -> Counts:
    """One file of a run of GPM is damaged. The runs of fine-tuning must be read as before, and it itself refused or equal."""
    dice, (root, files), counts = random.Random(seed), _example(), Counter[str]()
    work = root.parent / "work"
    before = _seen(root, root.parent / "kept")
    victims = [path for path in files if path.suffix in (".json", ".jsonl", ".csv") and "gpm" in path.parts]
    for number in range(count):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(root, work / "runs")
        spoilt = work / "runs" / dice.choice(victims).relative_to(root)
        _spoil(spoilt, dice)

        def attempt(resume: bool = number % 10 == 0 and spoilt.parent.name == "seed1") -> str:
            after = _seen(work / "runs", work / "kept")
            if any(after["values"].get(key) != old for key, old in before["values"].items() if "finetune" in str(key)):
                return "silent"
            if after["complaints"] > before["complaints"]:
                return "refused"
            if resume:
                plans, _ = unfinished(work / "runs", "cpu", 1)
                for plan in plans:
                    if plan.settings.method == "gpm":
                        return "equal" if _same_end(work, plan) else "silent"
            return "equal" if after["values"] == before["values"] else "unchecked"

        counts[outcome(attempt)] += 1
    return counts


ODD: list[Any] = [None, True, -1, 0, 10**6, 1.5, float("nan"), float("inf"), "", "x", [], {}, [None], {"a": 1}, (1, 2)]
ODD += [torch.zeros(0), torch.zeros(3), torch.zeros(2, 2, 2), torch.tensor(1), torch.zeros(5, dtype=torch.uint8)]


def _forged(state: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """A checkpoint in which one value is removed, has another type or shape, or is NaN."""
    state = copy.deepcopy(state)
    *above, last = dice.choice(list(_places(state)))
    parent: Any = state
    for key in above:
        parent = parent[key]
    old, kind = parent[last], dice.choice(("odd", "odd", "odd", "remove", "tensor", "tensor"))
    if kind == "remove":
        parent.pop(last)
    elif kind == "tensor" and isinstance(old, torch.Tensor):
        floating = old.is_floating_point()
        nan, other = (torch.full_like(old, float("nan")), old.double()) if floating else (old[None], old.float())
        parent[last] = dice.choice([nan, other, old[None], old.flatten()[:-1]])
    else:
        parent[last] = dice.choice(ODD)
    return state


@fuzzer("checkpoints", 300)
def checkpoints(seed: int, count: int) -> Counts:
    """The only checkpoint of an interrupted run is forged, with a valid checksum."""
    dice, (root, _), counts = random.Random(seed), _example(), Counter[str]()
    work = root.parent / "forged"
    (found,) = [folder for folder in unfinished(root, "cpu", 1)[0] if folder.settings.method == "gpm"]
    original = found.folder(1)
    state, _ = original.load_checkpoint()
    assert state is not None
    for _ in range(count):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(original.path, work / original.relative_path)
        for path in (work / original.relative_path).glob("checkpoint-*"):
            path.unlink()
        RunFolder.open(work / original.relative_path).save_checkpoint(_forged(state, dice))
        counts[outcome(lambda: "equal" if _same_end(work, replace(found, root=work)) else "silent")] += 1
    return counts
