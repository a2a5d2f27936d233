"""The code on the page about integrations and in the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "integrations.md", ROOT / "README.md"
pytestmark = pytest.mark.filterwarnings("ignore")


def blocks(page: Path, heading: str) -> list[str]:
    text = page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lightning_names() -> dict[str, Any]:
    L = pytest.importorskip("lightning")

    class Module(L.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = nn.Linear(8, 30), nn.ModuleList(nn.Linear(30, 2) for _ in range(3))

        def forward(self, x: Tensor, task: int = 0) -> Tensor:
            return self.heads[task](self.body(x).relu())  # type: ignore[no-any-return]

        def training_step(self, batch: Any, index: int) -> Tensor:
            task = int(batch[2][0]) if len(batch) > 2 else 0
            loss = nn.functional.cross_entropy(self(batch[0], task), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    def loader(number: int, *, labelled: bool = False) -> DataLoader[Any]:
        x = torch.randn(20, 2) @ torch.randn(2, 8)
        task = [torch.full((20,), number)] if labelled else []
        return DataLoader(TensorDataset(x, (x[:, 0] > 0).long(), *task), batch_size=10)

    return {"model": Module(), "make": Module, "make_loader": loader, "loaders": [loader(0), loader(1)], "L": L}


def execute(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "integrations.md", "exec"), names)


def test_lightning(lightning_names: dict[str, Any]) -> None:
    names = lightning_names
    loop, resume, best, heads = blocks(PAGE, "Lightning")
    execute(loop, names)
    names.update(next_loader=names["make_loader"](2))
    execute(resume, names)
    assert len(names["gpm"].memory) == 3
    names.update(model=names["make"]())
    execute(best, names)
    assert len(names["gpm"].memory) == 2
    execute(heads, names)
    gpm, model = names["gpm"], names["make"]()
    for number in range(3):
        trainer = names["L"].Trainer(max_epochs=1, callbacks=[gpm], enable_checkpointing=False, logger=False)
        trainer.fit(model, names["make_loader"](number, labelled=True))
    assert len(gpm.memory) == 3
    assert [check.name for check in gpm.verification.tasks] == ["task 0", "task 1"]
    assert all(check.drift is not None for check in gpm.verification.tasks)


@pytest.fixture
def transformers_names() -> dict[str, Any]:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, **sizes))
    rows = [{"input_ids": torch.randint(1, 30, (5,)), "labels": index % 2} for index in range(16)]
    known = {"AutoModelForSequenceClassification": transformers.AutoModelForSequenceClassification}
    return {"model": model, "datasets": [rows], "collator": transformers.default_data_collator, **known}


def test_transformers(transformers_names: dict[str, Any]) -> None:
    for code in blocks(PAGE, "HuggingFace transformers"):
        execute(code, transformers_names)
    assert len(transformers_names["gpm"].memory) == 1


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_the_readme(library: str, request: pytest.FixtureRequest) -> None:
    names = request.getfixturevalue(f"{library}_names")
    code = next(
        code for code in blocks(README, "In Lightning, HuggingFace or Avalanche") if f"integrations.{library}" in code
    )
    assert len(code.splitlines()) <= 7
    execute(code, names)
    assert len(names["gpm"].memory) == len(names.get("loaders", names.get("datasets")))
