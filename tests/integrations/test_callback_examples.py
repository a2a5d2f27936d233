"""The examples with Lightning and HuggingFace run, with fewer tasks and epochs, and forget less with the callback."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")


def run(name: str, capsys: pytest.CaptureFixture[str], **smaller: Any) -> str:
    names = runpy.run_path(str(EXAMPLES / name))
    names["main"].__globals__.update(smaller)
    names["main"]()
    return capsys.readouterr().out


def gain(printed: str) -> float:
    return float(printed.splitlines()[-1].split()[0])


def test_digits_with_lightning(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    assert gain(run("lightning_digits.py", capsys, TASKS=2, EPOCHS=3)) > 5


def test_text_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers", minversion="5")
    assert gain(run("hf_text.py", capsys)) > 5
