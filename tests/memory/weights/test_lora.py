"""LoRA adapters with the real peft: A stays outside the memory, B is free, and each task's adapter is added to the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attached import train_attached
from small_net import data
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LeakError, UnsupportedError
from remnant.memory.weights import lora as lora_module

peft = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Old outputs moved", "ignore:These layers are full")


class Images(nn.Module):
    """A convolution, a linear layer and an output that does not train."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 6, 3, padding=1, **options)
        self.hidden = nn.Linear(6 * 9, 20)
        self.out = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.conv(x.reshape(-1, 12, 3, 3)).flatten(1).relu()).relu())


class Tokens(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def adapted(base: nn.Module, *targets: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    return peft.get_peft_model(base.to(dtype), peft.LoraConfig(**{"r": 2, "target_modules": list(targets), **options}))


def factors(model: nn.Module, kind: str) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if f"lora_{kind}" in name}


def train(memory: GPM, x: Tensor, target: float, **options: Any) -> None:
    train_attached(memory, lambda: (memory._model(x) - target).square().mean(), **options)


def two_adapters() -> Any:
    model = adapted(perceptron(), "0", "2")
    model.add_adapter("other", peft.LoraConfig(r=3, target_modules=["2"]))
    model.base_model.set_adapter(["default", "other"])
    return model.double()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


MODELS: dict[str, Callable[[], tuple[Any, int]]] = {
    "linear": lambda: (adapted(perceptron(), "0", "2", dtype=torch.float64), 16),
    "convolution": lambda: (adapted(Images(), "conv", "hidden", dtype=torch.float64), 108),
    "scaled": lambda: (adapted(perceptron(), "0", "2", dtype=torch.float64, use_rslora=True, lora_alpha=7), 16),
    "two adapters": lambda: (two_adapters(), 16),
    "with dropout": lambda: (adapted(perceptron(), "0", "2", dtype=torch.float64, lora_dropout=0.5), 16),
}


@pytest.mark.parametrize("name", MODELS)
def test_old_outputs_stay_while_every_adapter_trains(name: str) -> None:
    model, width = MODELS[name]()
    memory = GPM(model, 1.0, lora="inputs")
    tasks = [data(1, 3, width).double() for _ in range(3)]
    outputs = []
    for number, x in enumerate(tasks):
        model.train()
        train(memory, x, float(number), optimizer=torch.optim.AdamW)
        model.eval()
        outputs.append(model(x).detach())
        assert all(bool(up.any()) for up in factors(model, "B").values())  # B trains in every task
        memory.verify()
        memory.consolidate(x)
        assert all(not bool(up.any()) for up in factors(model, "B").values())
    for x, before in zip(tasks, outputs, strict=True):
        torch.testing.assert_close(model(x), before, rtol=0, atol=1e-9)


def test_the_next_adapter_starts_outside_the_memory_and_changes_no_output() -> None:
    model = adapted(perceptron(), "0", "2", dtype=torch.float64)
    memory = GPM(model, 1.0, lora="inputs")
    x, others = data(2, 5, 16).double(), torch.randn(20, 16).double()
    fresh = {name: down.detach().clone() for name, down in factors(model, "A").items()}
    train(memory, x, 1.0)
    before = model(others).detach()
    memory.consolidate(x)
    torch.testing.assert_close(model(others), before, rtol=0, atol=1e-12)  # not only for the inputs of the task
    for name, down in factors(model, "A").items():
        subspace = memory.subspaces[name.removesuffix(".weight")]
        assert subspace.rank > 0
        assert float((down.detach() @ subspace.basis).norm()) < 1e-12
        assert float(down.detach().norm()) == pytest.approx(float(fresh[name].norm()), rel=0.3)  # it learns as fast


def test_the_draw_of_the_next_adapter_does_not_depend_on_the_process() -> None:
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(0)
        model = adapted(perceptron(), "0")
        memory, x = GPM(model, 1.0, lora="inputs"), data(2, 5, 16)
        torch.manual_seed(seed)
        memory.consolidate(x)
        drawn.append(next(iter(factors(model, "A").values())).detach())
    assert torch.equal(*drawn)


def second_task(dtype: torch.dtype = torch.float32) -> tuple[Any, GPM, Tensor]:
    model = adapted(perceptron(), "0", "2", dtype=dtype)
    memory, x = GPM(model, 0.9999, lora="inputs"), data(2, 12, 16).to(dtype)
    train(memory, x, 1.0)
    memory.consolidate(x)
    train(memory, data(2, 12, 16).to(dtype), 2.0)
    return model, memory, x


def test_verify_is_green_and_old_outputs_keep_their_place() -> None:
    _, memory, x = second_task()
    result = memory.verify(x)
    assert max(check.leak for check in result.layers) < 1e-4
    assert max(check.drift or 0 for check in result.tasks) < 1e-3


def break_down(model: Any) -> None:
    next(iter(factors(model, "A").values())).data.add_(0.01)


def break_base(model: Any) -> None:
    model.get_base_model()[0].base_layer.weight.data.add_(0.01)


def start_another_adapter(model: Any) -> None:
    for layer in model.modules():
        if hasattr(layer, "reset_lora_parameters"):
            layer.reset_lora_parameters("default", True)


@pytest.mark.parametrize("broken", [break_down, break_base, start_another_adapter, lambda model: model.merge_adapter()])
def test_verify_is_red_when_somebody_breaks_it(broken: Callable[[Any], None]) -> None:
    model, memory, _ = second_task()
    broken(model)
    with pytest.raises(LeakError, match=r"lora_A|base_layer"):
        memory.verify()


def test_merged_adapters_are_not_consolidated() -> None:
    model, memory, x = second_task()
    model.merge_adapter()
    with pytest.raises(RuntimeError, match=r"lora_A.*got a single example"):
        memory.consolidate(x)


def test_a_base_in_bfloat16_is_right_up_to_its_rounding() -> None:
    model, memory, x = second_task(torch.bfloat16)
    assert model.get_base_model()[0].base_layer.weight.dtype is torch.bfloat16
    result = memory.verify(x)
    assert max(check.drift or 0 for check in result.tasks) < 0.02


def test_a_saved_memory_continues_in_the_middle_of_a_task(tmp_path: Path) -> None:
    model, memory, x = second_task()
    memory.save(tmp_path / "memory.safetensors")
    twin = adapted(perceptron(), "0", "2")
    twin.load_state_dict(model.state_dict())  # with the base weights, to which earlier adapters were added
    loaded = GPM.load(tmp_path / "memory.safetensors", twin)
    pairs = [(memory, model), (loaded, twin), (copied := copy.deepcopy(memory), copied._model)]
    for each, _ in pairs:
        train(each, x.flip(1), 3.0, steps=5)
        each.verify()
    for _, other in pairs[1:]:
        assert all(torch.equal(*both) for both in zip(model.parameters(), other.parameters(), strict=True))


def test_an_interrupted_restart_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, memory, x = second_task()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    original = lora_module.restart

    def interrupted(*args: Any) -> None:
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(lora_module, "restart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.consolidate(x)
    assert len(memory) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    memory.verify()


def test_adapters_saved_before_each_consolidate_give_the_network_of_every_task_back(tmp_path: Path) -> None:
    base = perceptron()
    model = adapted(copy.deepcopy(base), "0", "2")
    memory = GPM(model, 0.9999, lora="inputs")
    tasks = [data(2, 12, 16) for _ in range(3)]
    others, outputs = torch.randn(20, 16), []
    for number, x in enumerate(tasks):
        train(memory, x, float(number))
        outputs.append(model(others).detach())
        model.save_pretrained(tmp_path / str(number))
        memory.consolidate(x)
    for last, expected in enumerate(outputs):
        kept = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "0", adapter_name="0")
        for number in range(1, last + 1):
            kept.load_adapter(tmp_path / str(number), adapter_name=str(number))
        kept.base_model.set_adapter([str(number) for number in range(last + 1)])
        torch.testing.assert_close(kept(others), expected, rtol=1e-4, atol=1e-5)


def test_without_the_option_an_adapter_is_full_after_one_task_and_the_warning_tells_of_it() -> None:
    model = adapted(perceptron(), "0")
    memory, x = GPM(model, 1.0), data(2, 12, 16)
    train(memory, x, 1.0)
    with pytest.warns(UserWarning, match='lora="inputs"'):
        memory.consolidate(x)


def only_up_trains() -> Any:
    model = adapted(perceptron(), "0")
    for down in factors(model, "A").values():
        down.requires_grad_(False)
    return model


def merged() -> Any:
    model = adapted(perceptron(), "0")
    model.merge_adapter()
    return model


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd", "ignore:Model with `tie_word_embeddings")
@pytest.mark.parametrize(
    ("model", "reason"),
    {
        "DoRA": (lambda: adapted(perceptron(), "0", use_dora=True), "DoRA"),
        "bias of B": (lambda: adapted(perceptron(), "0", lora_bias=True), "lora_bias=True"),
        "embedding": (lambda: adapted(Tokens(), "table"), "Embedding"),
        "tied": (lambda: adapted(Tokens(tied=True), "out"), "shares its weight"),
        "attention": (lambda: adapted(Attention(), "attention"), "MultiheadAttention"),
        "groups": (lambda: adapted(Images(groups=2), "conv"), "groups"),
        "padding": (lambda: adapted(Images(padding_mode="reflect"), "conv"), "padding"),
        "only B": (only_up_trains, "trains B but not A"),
        "merged": (merged, "unmerge_adapter"),
        "no adapter": (perceptron, "trainable LoRA adapters"),
    }.values(),
)
def test_adapters_that_would_not_be_exact_are_refused(model: Callable[[], Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        GPM(model(), lora="inputs")


class ReadTwice(nn.Module):
    """The weight of a layer is read by the layer, and once more where no adapter is added."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.other, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x).tanh() + F.linear(x.sin(), self.hidden.weight)
        return self.out(self.other(hidden).tanh())


def test_an_adapter_that_merging_would_show_elsewhere_is_refused_by_name() -> None:
    model = adapted(ReadTwice(), "hidden", "other")
    memory, x = GPM(model, 0.9999, lora="inputs"), data(2, 12, 16)
    train(memory, x, 1.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConsolidationError, match=r"would move the outputs: 'base_model\.model\.hidden'\. "):
        memory.consolidate(x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    accepting = GPM(model, 0.9999, lora="inputs", unsupported="free")
    accepting.consolidate(x)


def test_other_layers_that_train_are_protected_as_usual_and_recall_is_refused() -> None:
    model = adapted(perceptron(), "0", modules_to_save=["4"])
    names = set(GPM(model, lora="inputs").subspaces)
    assert names == {"base_model.model.0.lora_A.default", "base_model.model.4.modules_to_save.default"}
    with pytest.raises(ValueError, match="cannot be combined with recall"):
        GPM(model, lora="inputs", recall=True)
    with pytest.raises(ValueError, match="choose one of None, 'inputs'"):
        GPM(model, lora="weights")
