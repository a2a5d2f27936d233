"""What docs/how-to.md and docs/streams.md say to paste runs as it stands there, on two seeds of the digits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from remnant.experiments.execute.plan import Plan, execute
from remnant.experiments.runs.folder import RunFolder, find_runs, keep_results
from remnant.experiments.settings.resolve import resolve
from remnant.models import MODELS

DOCS = Path(__file__).parents[1] / "docs"
QUICK = ("training.epochs=1", "stream.tasks=2")


def blocks(page: str, heading: str) -> list[str]:
    section = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def run(code: str, name: str = "__main__") -> dict[str, Any]:
    """As a file of that name; one seed, since those of two would each start Python anew."""
    names: dict[str, Any] = {"__name__": name}
    exec(compile(code.replace("seeds=(0, 1)", "seeds=(0,)"), "docs", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(*overrides: str, benchmark: str = "permuted-digits", seeds: tuple[int, ...] = (0,)) -> list[RunFolder]:
    settings = resolve(benchmark, "gpm", overrides)
    return [f for seed in seeds for f in execute(Plan(settings, (seed,), Path("runs"), "cpu"), lambda progress: None)]


def result(folder: RunFolder) -> dict[str, Any]:
    found = folder.result()
    assert found is not None
    return found


def test_both_ways_to_read_results_give_every_seed_alike(capsys: pytest.CaptureFixture[str]) -> None:
    runs = made(*QUICK, seeds=(0, 1))
    said = []
    for code in blocks("how-to.md", "Read results"):
        run(code)
        said.append({tuple(re.findall(r"[\w.+-]+", line)) for line in capsys.readouterr().out.splitlines()})
    with_library, without = said
    assert {words[:2] for words in with_library} == {(folder.digest, str(folder.seed)) for folder in runs}
    for long, short in zip(sorted(with_library), sorted(without), strict=True):
        assert [float(n) for n in long[1:]] == pytest.approx([float(n) for n in short[1:]], abs=1e-6)


def test_the_files_it_lists_are_those_of_a_run() -> None:
    (folder,) = made(*QUICK)
    section = (DOCS / "how-to.md").read_text(encoding="utf-8").split("\n## Read results\n")[1]
    listed = set(re.findall(r"`([a-z]+\.(?:json|jsonl|csv))`", section.split("\n## ")[0]))
    found = {file.name for file in folder.path.iterdir() if not file.name.startswith(".")}
    assert listed == found | {"drift.json"}
    kept = {file.name for file in keep_results(folder, Path("results")).iterdir()}
    assert found - kept == {"metrics.jsonl", "execution.json"}


def test_runs_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("how-to.md", "Run from Python")
    run(code)
    (folder,) = find_runs(Path("runs"))
    assert folder.settings["options"]["lr"] == 0.1
    assert capsys.readouterr().out.split() == ["0", str(result(folder)["acc"])]


def test_runs_a_network_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("how-to.md", "A network of your own")
    monkeypatch.setitem(MODELS, "tanh", MODELS["mlp"])  # so that it is taken out again
    run(code.replace('"threshold=0.97"', f'"threshold=0.97", "{QUICK[0]}"'))
    (folder,) = find_runs(Path("runs"))
    assert result(folder)["parameters"] == 64 * 50 + 50 + 50 * 10


def test_the_stream_of_ones_own_takes_its_seed_and_its_option() -> None:
    _, code = blocks("streams.md", "Your own")
    Path("my_streams.py").write_text(code, encoding="utf-8")
    digits = run(code, "my_streams")["digits"]
    assert digits(0).head_sizes == (2, 2, 2, 2, 2)
    assert digits(0)[0].labels != digits(1)[0].labels
    (folder,) = made("stream.per_task=5", "training.epochs=1", benchmark="my_streams.py:digits")
    matrix = folder.matrix()
    assert matrix is not None
    assert matrix.tasks == 2
    assert result(folder)["validation_acc"] is not None
