"""Everything a run writes is strict JSON: other languages' parsers refuse NaN and Infinity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from remnant.experiments.execute import Plan, Progress, run
from remnant.experiments.paper import keep
from remnant.experiments.settings import resolve

FEW = ("stream.tasks=2", "training.batch=50", "network.hidden=[8]")
OWN = """
import torch
from remnant.data import Stream

stream = Stream.from_arrays([(torch.randn(60, 4), torch.arange(60) % 2) for _ in range(2)], test=0.3, valid=0.0)
"""


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("benchmark", "method", "overrides"),
    [
        ("permuted-digits", "gpm", FEW),
        ("permuted-digits", "multitask", FEW),  # joint training has no BWT
        ("permuted-digits", "single-task", (*FEW, "training.patience=1", "training.factor=2", "training.lr_min=0.001")),
        ("permuted-digits", "finetune", ("stream.tasks=2", "training.batch=2", "lr=10")),  # it diverges
        ("permuted-digits", "ewc", ("stream.tasks=1", *FEW[1:])),  # one task has no BWT
        ("own.py:stream", "er", ()),  # no validation set
    ],
)
def test_every_file_of_a_run_is_strict_json(
    benchmark: str, method: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    settings = resolve(benchmark, method, (*overrides, "training.epochs=2"))
    headers = []

    def read_checkpoints(progress: Progress) -> None:  # which are gone at the end
        for path in Path("runs").rglob("checkpoint-*"):
            with safe_open(path, "pt") as file:
                headers.append(strict(file.metadata()["remnant.state"]))

    run(
        Plan(settings, (0,), Path("runs"), "cpu", checkpoint_every=1, checkpoint_seconds=0.0, drift=True),
        read_checkpoints,
    )
    keep(Path("runs"), Path("results"))
    files = [path for path in Path().rglob("*.json*") if path.suffix in (".json", ".jsonl")]
    assert {path.name for path in files} >= {"settings.json", "result.json", "metrics.jsonl", "environment.json"}
    for path in files:
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            assert isinstance(strict(text), dict), path
    assert headers
