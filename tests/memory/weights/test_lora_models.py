"""Five tasks, one adapter after another, on a small vision transformer (the example) and a small GPT-2."""

from __future__ import annotations

import runpy
from collections import OrderedDict
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remnant
from remnant import GPM, LeakError

peft = pytest.importorskip("peft", reason="peft is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TASKS, STEPS, WIDTH, WORDS = 5, 30, 96, 5
EXAMPLE = Path(__file__).parents[3] / "examples" / "lora_vit.py"


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_vision_transformer_learns_five_tasks_and_forgets_none() -> None:
    example = runpy.run_path(str(EXAMPLE))
    example["learn"].__globals__["STEPS"] = 40
    kept = example["learn"](protected=True)
    assert max(kept.drift) < 1e-3
    assert kept.final == kept.learnt
    assert kept.learnt[-1] >= example["fresh_adapter"](example["TASKS"] - 1) - 2
    example["learn"].__globals__["STEPS"] = 20
    assert max(example["learn"](protected=False).drift) > 0.5  # without the memory, the tasks disturb each other


def test_three_tasks_are_learnt_at_the_learning_rate_of_inflora() -> None:
    """A tenth of that of the example, with twice as many steps."""
    example = runpy.run_path(str(EXAMPLE))
    example["learn"].__globals__.update(TASKS=3, STEPS=160, LR=5e-4)
    kept = example["learn"](protected=True)
    assert max(kept.drift) < 1e-3
    assert min(kept.learnt) > 98
    assert kept.final == kept.learnt


class Reader(nn.Module):
    """GPT-2 with a head for each task. Each task has its own four words, and a question mark of its own."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"n_embd": WIDTH, "n_inner": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 4}
        words = {"vocab_size": WORDS * TASKS, "bos_token_id": 0, "eos_token_id": 0}
        self.body = transformers.GPT2Model(transformers.GPT2Config(**sizes, **words))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(TASKS))

    def forward(self, words: Tensor, task: int) -> Tensor:
        return self.heads[task](self.body(words).last_hidden_state[:, -1])


def reader() -> Any:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=10, lora_alpha=10, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(Reader(), config)
    model.get_base_model().heads.requires_grad_(True)
    return model


def sentences(task: int) -> tuple[Tensor, Tensor]:
    """All sentences of three words and a question mark, and whether the sum of the first two words is odd."""
    words = torch.tensor(list(product(range(WORDS - 1), repeat=3)))
    return F.pad(words, (0, 1), value=WORDS - 1) + WORDS * task, words[:, :2].sum(1) % 2


def train(model: Any, task: int, memory: GPM | None = None) -> tuple[Tensor, float]:
    """Returns the outputs for a task that was just learnt, and their accuracy in %."""
    model.train()
    x, y = sentences(task)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    if memory is not None:
        memory.attach(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x, task), y).backward()
        optimizer.step()
    outputs = model.eval()(x, task).detach()
    return outputs, 100 * float((outputs.argmax(1) == y).float().mean())


def test_gpt2_learns_five_tasks_and_forgets_none() -> None:
    model = reader()
    memory = GPM(model, 0.9999999, lora="inputs", exclude=["*.heads.*"])
    then = []
    for task in range(TASKS):
        outputs, accuracy = train(model, task, memory)
        then.append(outputs)
        assert max([check.drift or 0 for check in memory.verify().tasks], default=0) < 1e-3
        memory.consolidate([sentences(task)[0]], forward=lambda model, batch, task=task: model(batch, task))
    assert accuracy >= train(reader(), TASKS - 1)[1] - 2  # a fresh adapter
    for task, before in enumerate(then):
        now = model(sentences(task)[0], task).detach()
        assert float((now - before).norm() / before.norm()) < 1e-3
    model.get_base_model().body.h[0].attn.c_attn.lora_A["default"].weight.data.add_(torch.randn(10, WIDTH))
    with pytest.raises(LeakError, match="lora_A"):
        memory.verify()


def test_the_loop_on_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "lora.md").read_text(encoding="utf-8")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))
    tasks = [SimpleNamespace(loader=[torch.randn(12, 2) @ torch.randn(2, 16)]) for _ in range(3)]
    names: dict[str, Any] = {"network": network, "tasks": tasks, "targets": ["0"], "train": learn, "remnant": remnant}
    names |= {"get_peft_model": peft.get_peft_model, "LoraConfig": peft.LoraConfig, "Adam": torch.optim.Adam}
    exec(compile(page.split("```python\n")[1].split("```")[0], "docs/lora.md", "exec"), names)
    assert type(names["network"][0]) is nn.Linear
    assert len(names["memory"]) == 3


def test_the_block_of_the_readme_runs() -> None:
    page = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8").split("\n## LoRA\n")[1]
    setup, task_loop = page.split("```python\n")[1].split("```")[0].split("memory.attach(optimizer)\n")
    torch.manual_seed(0)
    attention = {name: nn.Linear(16, 16) for name in ("q_proj", "v_proj")}
    names: dict[str, Any] = {"network": nn.Sequential(OrderedDict(attention)), "remnant": remnant}
    names |= {"get_peft_model": peft.get_peft_model, "LoraConfig": peft.LoraConfig}
    exec(setup, names)
    model, memory = names["model"], names["memory"]
    for _ in range(2):
        names["task"] = SimpleNamespace(loader=[torch.randn(12, 2) @ torch.randn(2, 16)])
        names["optimizer"] = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
        exec("memory.attach(optimizer)", names)
        learn(model, names["task"].loader, names["optimizer"])
        exec(task_loop, names)
    assert len(memory) == 2
    memory.verify()


def learn(model: nn.Module, loader: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    for x in loader * 3:
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
