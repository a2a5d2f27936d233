"""The examples run, shortened, and show what they promise. Those with Lightning, HuggingFace and LoRA are tested elsewhere."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = 'resolve("permuted-digits", method, ["training.epochs=1", "stream.tasks=2"])'
pytestmark = pytest.mark.filterwarnings("ignore")


def shortened(name: str, *replacements: tuple[str, str]) -> str:
    """The source of an example with other constants."""
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in source, f"{name} has no {old!r}"
        source = source.replace(old, new)
    return source


def execute(source: str, file: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": __name__, "__file__": str(file)}
    exec(compile(source, str(file), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)


def test_a_cnn_of_ones_own() -> None:
    pytest.importorskip("matplotlib")
    names = execute(shortened("own_cnn.py", ("EPOCHS = 6", "EPOCHS = 1")), EXAMPLES / "own_cnn.py")
    assert names["kept"][-1].mean() > names["plain"][-1].mean() + 0.1


def test_reading_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    names = execute(shortened("read_run.py", ('resolve("permuted-digits", method)', QUICK)), EXAMPLES / "read_run.py")
    assert len(names["left"].lines) == 2
    assert len(names["right"].lines) == 3
    assert "ranks.json" in capsys.readouterr().out


def test_a_method_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "own_method.py"
    file.write_text(shortened("own_method.py", ('resolve("permuted-digits", method)', QUICK)), encoding="utf-8")
    execute(file.read_text(encoding="utf-8"), file)["main"]()
    assert re.findall(r"^(\w+) +ACC", capsys.readouterr().out, re.MULTILINE) == ["PartOfTheWay", "finetune", "gpm"]


def test_heads() -> None:
    constants = ("TASKS, EPOCHS, BATCH, WIDTH = 5, 15, 32, 100", "TASKS, EPOCHS, BATCH, WIDTH = 2, 8, 32, 100")
    learn = execute(shortened("heads.py", constants), EXAMPLES / "heads.py")["learn"]
    assert learn("task-incremental", True)[1] > 90
    assert learn("class-incremental", True)[1] > 80 > 60 > learn("class-incremental", False)[1]
    assert learn("domain-incremental", True)[1] > 75


def test_distributed_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In one process; tests/conformance/test_distributed.py has two."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    source = shortened("ddp_digits.py", ("TASKS, EPOCHS = 3, 8", "TASKS, EPOCHS = 2, 1"))
    try:
        execute(source, EXAMPLES / "ddp_digits.py")["main"]()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert "1 processes hold the same" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["own_cnn", "read_run"])
def test_notebooks_are_those_of_the_scripts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "make_notebooks", raising=False)
    from make_notebooks import NAMES, cells

    assert name in NAMES
    file = EXAMPLES / f"{name}.ipynb"
    found = json.loads(file.read_text(encoding="utf-8"))["cells"]
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert [(x["cell_type"], "".join(x["source"])) for x in found] == cells(source), "run make notebooks"
    outputs = [output for cell in found for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
    assert file.stat().st_size < 200_000
