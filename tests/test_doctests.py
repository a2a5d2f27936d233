"""The examples in docstrings run, and print what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[1] / "src"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    files = (file for file in sorted(SOURCE.rglob("*.py")) if ">>>" in file.read_text(encoding="utf-8"))
    names = (".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.filterwarnings("ignore:These layers are full")  # examples use small layers
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("remnant"):
            raise
        pytest.skip(f"needs {error.name}")
    for example in doctest.DocTestFinder().find(module):
        torch.manual_seed(0)
        runner = doctest.DocTestRunner(optionflags=OPTIONS)
        shown: list[str] = []
        runner.run(example, out=shown.append)
        assert runner.summarize(verbose=False).failed == 0, "".join(shown)
