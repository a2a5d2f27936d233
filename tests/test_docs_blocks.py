"""Code on the docs pages runs as it stands there, on two seeds of the digits at most."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remnant
from remnant.experiments import Plan, find_runs, resolve, run
from remnant.experiments.runs import RunFolder, keep_results

DOCS = Path(__file__).parents[1] / "docs"
QUICK = ("training.epochs=1", "stream.tasks=2")


def blocks(page: str, heading: str = "") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def execute(code: str, name: str = "__main__", **names: Any) -> dict[str, Any]:
    """Runs a block as a file of that name. One seed is enough: two would each start a Python process."""
    names["__name__"] = name
    exec(compile(code.replace("seeds=(0, 1)", "seeds=(0,)"), "docs", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(*overrides: str, benchmark: str = "permuted-digits", seeds: tuple[int, ...] = (0,)) -> list[RunFolder]:
    settings = resolve(benchmark, "gpm", overrides)
    return [f for seed in seeds for f in run(Plan(settings, (seed,), Path("runs"), "cpu"), lambda progress: None)]


def result(folder: RunFolder) -> dict[str, Any]:
    found = folder.result()
    assert found is not None
    return found


def test_both_ways_to_read_results_give_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    runs = made(*QUICK, seeds=(0, 1))
    printed = []
    for code in blocks("run-folder.md"):
        execute(code)
        printed.append({tuple(re.findall(r"[\w.+-]+", line)) for line in capsys.readouterr().out.splitlines()})
    with_library, without = printed
    assert {words[:2] for words in with_library} == {(folder.digest, str(folder.seed)) for folder in runs}
    for long, short in zip(sorted(with_library), sorted(without), strict=True):
        assert [float(n) for n in long[1:]] == pytest.approx([float(n) for n in short[1:]], abs=1e-6)


def test_the_listed_files_are_those_of_a_run() -> None:
    (folder,) = made(*QUICK)
    rows = (DOCS / "run-folder.md").read_text(encoding="utf-8").split("\n## ")[0]
    listed = set(re.findall(r"^\| `([a-z]+\.(?:json|jsonl|csv))`", rows, re.MULTILINE))
    found = {file.name for file in folder.path.iterdir() if not file.name.startswith(".")}
    assert listed == found | {"drift.json"}
    kept = {file.name for file in keep_results(folder, Path("results")).iterdir()}
    assert found - kept == {"metrics.jsonl", "execution.json"}


def test_runs_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("how-to.md", "Run from Python")
    execute(code)
    (folder,) = find_runs(Path("runs"))
    assert folder.settings["options"]["lr"] == 0.1
    assert capsys.readouterr().out.split() == ["0", str(result(folder)["acc"])]


def test_every_threshold_is_accepted() -> None:
    (code,) = blocks("your-loop.md", "Choose a threshold")
    model = nn.ModuleDict({"conv1": nn.Linear(4, 4), "fc": nn.Linear(4, 4)})
    execute(code, GPM=remnant.GPM, model=model)


@pytest.mark.filterwarnings("ignore")
def test_a_memory_is_saved_stepped_and_verified_as_shown() -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(30, 6)
    memory = remnant.GPM(model, threshold=0.5)
    memory.consolidate([x])
    names = {"GPM": remnant.GPM, "torch": torch, "model": model, "memory": memory, "optimizer": optimizer}
    for heading in ("Save and continue", "A hand-written step", "Prove it"):
        (code,) = blocks("your-loop.md", heading)
        names = execute(code, **names, loss=model(x).square().mean(), step=optimizer.step, old_loader=[x])
        names = {key: names[key] for key in ("GPM", "torch", "model", "memory", "optimizer")}
    assert len(memory) == len(names["memory"]) == 1


def test_a_layer_of_ones_own_is_protected() -> None:
    (code,) = blocks("adding-a-layer.md")
    names = execute(code, "own_layer")
    memory, model = names["memory"], names["memory"]._model
    memory.consolidate([torch.randn(3, 20)])
    before = model[0].kernel.clone()
    optimizer = memory.attach(torch.optim.Adam(model.parameters()))
    model(torch.randn(50, 20)).square().mean().backward()
    optimizer.step()
    assert not model[0].kernel.equal(before)
    assert memory.verify().worst < 1e-4


def test_runs_a_network_of_ones_own() -> None:
    (code,) = blocks("adding-a-network.md")
    Path("my_net.py").write_text(code, encoding="utf-8")
    (command,) = re.findall(r"```\n(remnant run .*)\n```", (DOCS / "adding-a-network.md").read_text(encoding="utf-8"))
    (folder,) = made(*re.findall(r"--set (\S+)", command), *QUICK)
    assert "permuted-digits gpm" in command
    assert result(folder)["parameters"] == 64 * 50 + 50 + 50 * 10
    network = execute(code, "my_net")["Tanh"]((8, 8), 10)
    assert [units.count for units in network.wiring()] == [100]


def test_the_stream_of_ones_own_takes_its_seed_and_its_option() -> None:
    code, _ = blocks("streams.md", "Your own")
    Path("my_streams.py").write_text(code, encoding="utf-8")
    digits = execute(code, "my_streams")["digits"]
    assert digits(0).head_sizes == (2, 2, 2, 2, 2)
    assert digits(0)[0].labels != digits(1)[0].labels
    (folder,) = made("stream.per_task=5", "training.epochs=1", benchmark="my_streams.py:digits")
    matrix = folder.matrix()
    assert matrix is not None
    assert matrix.tasks == 2
    assert result(folder)["validation_acc"] is not None


def test_the_optimizer_is_a_setting() -> None:
    text = (DOCS / "how-to.md").read_text(encoding="utf-8").split("\n## Choose an optimizer\n")[1]
    overrides = re.findall(r"--set (\S+)", text.split("```")[1])
    (folder,) = made(*overrides, *QUICK)
    assert folder.settings["optimizer"] == {"name": "adamw", "weight_decay": 0.05}
