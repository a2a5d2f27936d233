"""Errors while a run is built: for the user's own file they give the line, otherwise the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from remnant.errors import RunError
from remnant.experiments import resolve
from remnant.experiments.execute import build_method

CPU = torch.device("cpu")
BROKEN = """from remnant.methods import Method
from remnant.models import MLP

class Plain(Method):
    name = "plain"

    def __init__(self, network, *, lr: float = 0.1) -> None:
        super().__init__(network, lr=lr)
        self.scale = 1 / (lr - 0.1)

class Net(MLP):
    def __init__(self, input_shape, classes) -> None:
        super().__init__(input_shape, classes, hidden=[{}["width"]])

def stream(seed):
    return [][seed]
"""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Plain", r"Plain could not be built: ZeroDivisionError: .* \(mine\.py, line 9\)\.$"),
        ("Net", r"Net could not be built: KeyError: 'width' \(mine\.py, line 13\)\.$"),
        ("stream", r"stream could not be built: IndexError: .* \(mine\.py, line 16\)\.$"),
    ],
)
def test_an_error_in_the_users_file_gives_its_line(name: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    mine = f"{tmp_path / 'mine.py'}:{name}"
    settings = resolve(
        mine if name == "stream" else "permuted-digits",
        mine if name == "Plain" else "finetune",
        [f"network.name={mine}"] if name == "Net" else [],
    )
    with pytest.raises(RunError, match=error):
        build_method(settings, 0, CPU)


def test_settings_that_do_not_fit_each_other_name_the_run() -> None:
    settings = resolve("permuted-digits", "finetune", ["network.name=alexnet"])
    with pytest.raises(RunError, match="finetune on permuted-digits: AlexNet cannot take images of 8×8"):
        build_method(settings, 0, CPU)
