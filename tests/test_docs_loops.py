"""The loops on the docs pages run as they stand there, and protect the model."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import remnant
from conformance.test_loops import SAM, Wrapper

DOCS = Path(__file__).parents[1] / "docs"
# Those in test_docs_blocks.py.
CHECKED_ELSEWHERE = {"Choose a threshold", "A hand-written step", "Prove it", "Save and continue"}
pytestmark = pytest.mark.filterwarnings("ignore")


def sections(page: str) -> dict[str, list[str]]:
    """Heading → its blocks of Python."""
    _, *parts = (DOCS / page).read_text(encoding="utf-8").split("\n## ")
    found = {part.split("\n", 1)[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in parts}
    return {heading: blocks for heading, blocks in found.items() if blocks}


def execute(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "<docs>", "exec"), names)


def loader(classes: int = 2, inputs: int = 12) -> DataLoader[Any]:
    x = torch.randn(40, 4) @ torch.randn(4, inputs)
    return DataLoader(TensorDataset(x, torch.arange(40) % classes), batch_size=10)


def train(model: nn.Module, optimizer: Any, loader: DataLoader[Any]) -> None:
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        model.zero_grad()


class ScheduleFree(torch.optim.SGD):
    def eval(self) -> None:
        """Puts an average in place, which is older than the task."""
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.9)


def names_for(heading: str) -> dict[str, Any]:
    """A reader's names, after the first task."""
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 2)) for _ in range(2))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    average.update_parameters(other)  # weights that are older than the task
    memory = remnant.GPM(model, 0.9)
    memory.consolidate(loader())
    kind = ScheduleFree if heading == "Schedule-free optimizers" else torch.optim.SGD
    optimizer = memory.attach(kind(model.parameters(), lr=0.1, momentum=0.9))
    x, y = next(iter(loader()))
    return {
        **{"torch": torch, "copy": copy, "remnant": remnant, "SAM": SAM, "train": train, "loss_fn": F.cross_entropy},
        **{"model": model, "memory": memory, "optimizer": optimizer, "average": average, "x": x, "y": y},
        **{"loader": loader(), "loaders": [loader()], "validation_loss": lambda model: float(model(x).square().mean())},
        "scaler": torch.amp.GradScaler("cpu"),
        "accelerator": type("Accelerator", (), {"prepare": staticmethod(Wrapper)}),
        "loss": F.cross_entropy(model(x), y),
    }


def steps_after(heading: str, names: dict[str, Any]) -> None:
    """What the reader's loop does with what the block has made."""
    if heading == "Compiled models and steps":
        names["step"](names["x"], names["y"])
    elif heading == "Averages of the weights (EMA, SWA)":
        names["model"].load_state_dict(names["average"].module.state_dict())
    elif heading in {"Several optimizers", "Wrapped optimizers and sharpness-aware minimisation"}:
        train(names["model"], names["optimizer"], names["loader"])


@pytest.mark.parametrize("heading", sorted(sections("your-loop.md").keys() - CHECKED_ELSEWHERE))
def test_your_loop(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda step: step)  # tests/conformance/test_compile.py compiles such a step
    for block in sections("your-loop.md")[heading]:
        names = names_for(heading)
        before = [parameter.detach().clone() for parameter in names["model"].parameters()]
        execute(block, names)
        steps_after(heading, names)
        names["memory"].verify()
        after = list(names["model"].parameters())
        assert heading == "Remember a task" or any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_heads() -> None:
    for heading, (block,) in sections("heads.md").items():
        loaders = [loader(2, 64) for _ in range(3)]
        names = {"torch": torch, "nn": nn, "F": F, "remnant": remnant, "loaders": loaders}
        execute(block, names)
        assert len(names["memory"]) == 3, heading
        assert names["memory"].verify().worst < 1e-4


def test_a_pretrained_model() -> None:
    (block,) = sections("faq.md")["Can I protect a pretrained model?"]
    names = {**names_for(""), "general_data": loader()}
    names["memory"].detach()
    execute(block, {**names, "pretrained": names["model"]})


def test_the_tutorial(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for blocks in sections("tutorial.md").values():
        for block in blocks:
            execute(block.replace("range(15)", "range(3)"), names)
    rows = [re.findall(r"\d+", row) for row in re.findall(r"^\[.*\]$", capsys.readouterr().out, re.MULTILINE)]
    assert len(rows) == 6
    plain, kept = (sum(map(int, row)) for row in (rows[2], rows[5]))
    assert kept > plain + 10
