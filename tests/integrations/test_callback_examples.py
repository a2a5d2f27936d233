"""The examples with Lightning and HuggingFace run, with fewer tasks and epochs, and forget less with the callback."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")


def gain(name: str, capsys: pytest.CaptureFixture[str], **smaller: Any) -> float:
    """Runs an example with other constants, and returns the points of accuracy that it prints."""
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    if "TOPICS" in main.__globals__:
        smaller["TOPICS"] = dict(list(main.__globals__["TOPICS"].items())[:2])
    main.__globals__.update(smaller)
    main()
    return float(capsys.readouterr().out.splitlines()[-1].split()[0])


def test_digits_with_lightning(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    assert gain("lightning_digits.py", capsys, TASKS=2, EPOCHS=3) > 5


def test_text_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers", minversion="5")
    assert gain("hf_text.py", capsys, EPOCHS=4) > 5
