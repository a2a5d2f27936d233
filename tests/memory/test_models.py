"""Whole models the library has never seen: the second task is learnt, and the first one's outputs stay."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant import GPM

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:enable_nested_tensor")

Loss = Callable[[nn.Module, Any], Tensor]
Outputs = Callable[[nn.Module, Any], Tensor]


def learn(
    model: nn.Module, batches: list[Any], loss: Loss, steps: int, memory: GPM | None = None
) -> tuple[float, float]:
    """AdamW with weight decay: it moves weights in directions that no gradient has. Returns the first and the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    if memory is not None:
        memory.attach(optimizer)
    model.train()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(model, batches[step % len(batches)])
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return sum(losses[: len(batches)]) / len(batches), sum(losses[-len(batches) :]) / len(batches)


def outputs_of(model: nn.Module, batches: list[Any], outputs: Outputs) -> Tensor:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        result = torch.cat([outputs(model, batch).flatten(1) for batch in batches])
    for module, mode in modes.items():
        module.training = mode
    return result


@dataclass
class Case:
    model: nn.Module
    tasks: tuple[list[Any], list[Any]]
    loss: Loss
    outputs: Outputs
    settings: dict[str, Any] = field(default_factory=dict)

    def second_task(self, threshold: float) -> tuple[GPM, nn.Module, Tensor, tuple[float, float]]:
        """Learns both tasks. Returns the memory, the model as the first task left it, its outputs then, and two losses."""
        first, second = self.tasks
        memory = GPM(self.model, threshold, **self.settings)
        learn(self.model, first, self.loss, 30, memory)
        memory.detach()
        bare = copy.deepcopy(self.model)
        added = memory.consolidate(first)
        assert min(added.values()) > 0, "every layer of the model is reached"
        before = outputs_of(self.model, first, self.outputs)
        return memory, bare, before, learn(self.model, second, self.loss, 30, memory)


# --- a ResNet -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A bottleneck of 1×1, grouped 3×3 and 1×1 convolutions, with a strided 1×1 shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, stride=stride, padding=1, groups=4, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 48, 2))
        self.head = nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def images(classes: tuple[int, ...], size: int, channels: int = 3, batches: int = 2) -> list[tuple[Tensor, Tensor]]:
    """Each class a smooth pattern of its own, and a little noise."""
    patterns = F.interpolate(torch.randn(8, channels, 2, 2), size=size, mode="bilinear")
    made = []
    for _ in range(batches):
        labels = torch.tensor(classes)[torch.randint(len(classes), (16,))]
        made.append((patterns[labels] + 0.02 * torch.randn(16, channels, size, size), labels))
    return made


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def logits(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


def resnet() -> Case:
    return Case(ResNet(), (images((0, 1), 12), images((2, 3), 12)), classify, logits)


# --- a ViT --------------------------------------------------------------------------------------------------------


class ViT(nn.Module):
    def __init__(self, *, norm_first: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
        self.pos_embed = nn.Parameter(torch.randn(1, 10, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor, ignore: Tensor | None = None) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], dim=1) + self.pos_embed
        return self.head(self.encoder(tokens, src_key_padding_mask=ignore)[:, 0])


def vit(*, norm_first: bool) -> Case:
    tasks = images((0, 1), 12), images((2, 3), 12)
    return Case(ViT(norm_first=norm_first), tasks, classify, logits, {"unsupported": "freeze"})


# --- transformers -------------------------------------------------------------------------------------------------


def tokens(low: int, high: int, *, batches: int = 2, length: int = 10) -> list[dict[str, Tensor]]:
    """Sequences that count up, each task in its own part of the vocabulary."""
    made = []
    for _ in range(batches):
        start = torch.randint(low, high, (8, 1))
        ids = low + (start - low + torch.arange(length)) % (high - low)
        made.append({"input_ids": ids, "labels": ids})
    return made


def hf_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).loss


def hf_logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).logits


def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def gpt2() -> Case:
    config = transformers().GPT2Config(
        vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers().GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight, "tied: one two-sided weight"
    return Case(model, (tokens(1, 20), tokens(30, 50)), hf_loss, hf_logits)


def llama() -> Case:
    config = transformers().LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return Case(transformers().LlamaForCausalLM(config), (tokens(1, 20), tokens(30, 50)), hf_loss, hf_logits)


def bert() -> Case:
    """The head is free, so the features must stay."""
    config = transformers().BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=16,
        num_labels=2,
    )

    def task(low: int, high: int) -> list[dict[str, Tensor]]:
        ids = [torch.randint(low, high, (8, 10)) for _ in range(2)]
        return [{"input_ids": x, "labels": (x.float().mean(1) > (low + high - 1) / 2).long()} for x in ids]

    def features(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model.bert(input_ids=batch["input_ids"]).pooler_output

    model = transformers().BertForSequenceClassification(config)
    return Case(model, (task(1, 12), task(30, 41)), hf_loss, features, {"exclude": ["classifier"]})


# --- properties of all of them -----------------------------------------------------------------------------------

CASES = {
    "resnet": resnet,
    "vit-pre-norm": lambda: vit(norm_first=True),
    "vit-post-norm": lambda: vit(norm_first=False),
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
}
every_model = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())


@every_model
def test_the_second_task_is_learnt_and_the_first_stays_where_a_bare_twin_forgets(make: Callable[[], Case]) -> None:
    case = make()
    memory, bare, before, (start, end) = case.second_task(0.9999)
    assert memory.verify(tolerance=1e-4).worst <= 1e-4
    assert end < 0.8 * start, f"the second task was not learnt: {start:.3f} → {end:.3f}"

    first, second = case.tasks
    learn(bare, second, case.loss, 30)
    moved = (outputs_of(case.model, first, case.outputs) - before).norm()
    moved_bare = (outputs_of(bare, first, case.outputs) - before).norm()
    assert moved < 0.25 * moved_bare, f"moved {moved:.3f} with the memory, {moved_bare:.3f} without"


@every_model
def test_with_all_energy_remembered_no_path_through_the_model_moves(make: Callable[[], Case]) -> None:
    """One unprotected parameter anywhere in the model would fail this test."""
    case = make()
    _, _, before, _ = case.second_task(1.0)
    after = outputs_of(case.model, case.tasks[0], case.outputs)
    torch.testing.assert_close(after, before, atol=1e-4 * float(before.abs().max()), rtol=1e-4)


def test_what_is_protected_in_each_of_them() -> None:
    def plan(case: Case) -> tuple[set[str], set[str]]:
        memory = GPM(case.model, **case.settings)
        return set(memory.subspaces), set(memory.report().frozen)

    protected, frozen = plan(resnet())
    assert {"stem.0", "blocks.0.body.3", "blocks.0.shortcut.0", "head"} <= protected
    assert "blocks.0.body.1.weight" in frozen
    protected, frozen = plan(vit(norm_first=True))
    assert {"encoder.layers.0.self_attn.in_proj", "encoder.layers.1.self_attn.out_proj", "patches"} <= protected
    assert {"cls_token", "pos_embed"} <= frozen
    protected, _ = plan(gpt2())
    assert {"transformer.wte", "lm_head", "transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj"} <= protected
    _, frozen = plan(llama())
    assert "model.norm.weight" in frozen


def test_a_grouped_convolution_has_a_subspace_for_each_group() -> None:
    subspaces = GPM(ResNet()).subspaces["blocks.0.body.3"]
    assert isinstance(subspaces, list)
    assert [subspace.capacity for subspace in subspaces] == [32 // 4 * 9] * 4


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "padding mask"])
def test_the_transformers_fused_eval_path_does_not_pass_the_memory_by(masked: bool) -> None:
    """In eval mode PyTorch runs an encoder layer as one kernel, which calls none of its parts."""
    model = ViT(norm_first=False, dropout=0.1).eval()
    ignore = torch.zeros(16, 10, dtype=torch.bool)
    ignore[:, 8:] = masked
    memory = GPM(model, unsupported="freeze")
    batch = {"x": images((0, 1), 12)[0][0], "ignore": ignore}
    enabled = torch.backends.mha.get_fastpath_enabled()
    added = memory.consolidate([batch] if masked else [{"x": batch["x"]}])
    assert torch.backends.mha.get_fastpath_enabled() == enabled
    assert min(added.values()) > 0
