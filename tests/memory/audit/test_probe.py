"""A protected weight multiplied outside its layer's forward is noticed; one that is only read is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from attached import train_attached
from bitwise import frozen_copy, same
from torch import Tensor, nn

from remnant import GPM, ConsolidationError

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")

Head = Callable[[nn.Module, Tensor], Tensor]


class Tied(nn.Module):
    """An embedding whose weight also computes the logits, by a function that the test chooses."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.tok, self.mid = nn.Embedding(12, 6), nn.Linear(6, 6)
        self.register_buffer("u", torch.randn(6))
        self.head = head

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self, torch.tanh(self.mid(self.tok(tokens))))


def whiten(h: Tensor) -> Tensor:
    """A LayerNorm without parameters: norm and sum of its output are the same for every input."""
    return F.layer_norm(h, h.shape[-1:])


MULTIPLIED: dict[str, Head] = {
    "linear": lambda m, h: F.linear(h, m.tok.weight),
    "matmul": lambda m, h: h @ m.tok.weight.T,
    "right matmul": lambda m, h: (m.tok.weight @ h.mT).mT,
    "einsum": lambda m, h: torch.einsum("btd,vd->btv", h, m.tok.weight),
    "a copy": lambda m, h: F.linear(h, m.tok.weight.double().float().clone()),
    "normalised": lambda m, h: F.linear(h, F.normalize(m.tok.weight)),
    "half of it": lambda m, h: torch.cat([F.linear(h, m.tok.weight[:6]), h], -1),
    "embedding": lambda m, h: h + F.embedding((h.argmax(-1) + 6) % 12, m.tok.weight),
    "indexed": lambda m, h: h + m.tok.weight[(h.argmax(-1) + 6) % 12],
    "norm": lambda m, h: h + m.tok.weight.norm() + m.mid.weight.square().sum().sqrt(),
    "orthogonality": lambda m, h: h + (m.tok.weight.T @ m.tok.weight - torch.eye(6)).square().mean(),
    "power iteration": lambda m, h: h / torch.mv(m.tok.weight, F.normalize(m.u, dim=0)).norm(),
    "random probe": lambda m, h: h / (m.tok.weight @ torch.randn(6)).norm(),
    "its bias apart": lambda m, h: m.mid(h) + F.linear(h, m.mid.weight),
    "its bias apart, by matmul": lambda m, h: m.mid(h) + h @ m.mid.weight.T,
    "its bias apart, by einsum": lambda m, h: m.mid(h) + torch.einsum("bti,oi->bto", h, m.mid.weight),
    "its bias apart, a row a token": lambda m, h: m.mid(h) + F.linear(h.flatten(0, 1), m.mid.weight).view_as(h),
    "its bias apart, computed again": lambda m, h: m.mid(h) + F.linear(h.double().atanh().tanh().float(), m.mid.weight),
    "past the hooks": lambda m, h: m.mid.forward(h),
    "called too, with its features in another order": lambda m, h: m.mid(h) + F.linear(h.flip(-1), m.mid.weight),
    "that by einsum": lambda m, h: m.mid(h) + torch.einsum("bti,oi->bto", h.flip(-1), m.mid.weight),
    "called too, with another norm's output": lambda m, h: F.linear(whiten(m.mid(whiten(h)).tanh()), m.mid.weight),
    "called too, from the other side": lambda m, h: m.mid(h) + h @ m.mid.weight,
    "called too, with another function of the weight": lambda m, h: m.mid(h) + F.linear(h, m.mid.weight.abs()),
    "called too, with a tenth of it changed": lambda m, h: m.mid(h) + F.linear(h + 0.1 * h.flip(-1), m.mid.weight),
}
LOOKED_AT: dict[str, Head] = {
    "mask": lambda m, h: h[..., m.mid.weight.abs().sum(0) >= 0],
    "shape and type": lambda m, h: h.to(m.tok.weight.dtype)[..., : m.tok.weight.shape[1]],
    "its layer again": lambda m, h: m.mid(h),
    "positions": lambda m, h: m.mid(h) + m.mid(m.tok(torch.arange(h.shape[1]))),
    "called too, with the bias": lambda m, h: m.mid(h) + F.linear(h, m.mid.weight, m.mid.bias),
}
OLD, NEW = torch.arange(15).reshape(3, 5) % 4, 4 + torch.arange(40).reshape(8, 5) % 8


def train(memory: GPM, tokens: Tensor) -> None:
    train_attached(memory, lambda: (memory._model(tokens) - 1).square().mean())


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("head", MULTIPLIED.values(), ids=MULTIPLIED)
def test_a_weight_multiplied_outside_its_layer_is_an_error_that_names_it(head: Head, trained: bool) -> None:
    memory = GPM(Tied(head))
    if trained:
        train(memory, OLD)
    before = frozen_copy(memory.state_dict())
    with pytest.raises(
        ConsolidationError, match=r"in ways that their rule does not cover: '(tok|mid)'.*Nothing was remembered"
    ):
        memory.consolidate(OLD)
    assert same(memory.state_dict(), before)


@pytest.mark.parametrize("head", LOOKED_AT.values(), ids=LOOKED_AT)
def test_a_weight_that_is_only_looked_at_is_no_error(head: Head) -> None:
    memory = GPM(Tied(head), threshold=0.5)
    train(memory, OLD)
    memory.consolidate(OLD)
    train(memory, NEW)
    memory.consolidate([NEW, OLD])
    memory.verify()


class Twice(nn.Module):
    """A convolution that is called, and its kernel used again on a version of the same image."""

    def __init__(self, version: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.version = nn.Conv2d(4, 4, 3, padding=1, bias=False), version

    def forward(self, x: Tensor) -> Tensor:
        again = F.conv2d(self.version(x), self.conv.weight, padding=1)
        return torch.as_tensor(self.conv(x) + again.reshape(x.shape))


def test_how_an_image_lies_in_memory_makes_it_no_other_input() -> None:
    channels_last = Twice(lambda x: x.contiguous(memory_format=torch.channels_last))
    GPM(channels_last, threshold=0.5).consolidate(torch.randn(2, 4, 4, 4))


@pytest.mark.parametrize(
    "version",
    [lambda x: x.flip(1), lambda x: x.mT, lambda x: x.reshape(1, 4, 8, 4)],
    ids=["channels flipped", "turned", "two images as one"],
)
def test_the_same_pixels_in_another_place_are_another_input(version: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ConsolidationError, match="does not cover: 'conv'"):
        GPM(Twice(version), threshold=0.5).consolidate(torch.randn(2, 4, 4, 4))


def test_the_next_index_is_another_input_however_large_both_are() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok = nn.Embedding(20_000, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return torch.as_tensor(self.tok(tokens) + F.embedding(tokens + 1, self.tok.weight))

    with pytest.raises(ConsolidationError, match="does not cover: 'tok'"):
        GPM(Model()).consolidate(torch.arange(19_000, 19_010).reshape(2, 5))


def test_a_weight_that_is_another_layers_input_is_named() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys, self.mid = nn.Linear(6, 4, bias=False), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.keys(x) + self.mid(self.keys.weight).norm())

    with pytest.raises(ConsolidationError, match="does not cover: 'keys'"):
        GPM(Model(), threshold=0.5).consolidate(torch.randn(3, 6))


def test_freeze_holds_such_a_weight_and_the_old_outputs_with_it() -> None:
    model = Tied(MULTIPLIED["linear"])
    memory = GPM(model, threshold=1.0, unsupported="freeze")
    train(memory, OLD)
    added = memory.consolidate(OLD)
    assert added["tok"] == 12
    before, weights = model(OLD).detach(), frozen_copy(model.state_dict())
    train(memory, NEW)
    assert torch.equal(model.tok.weight, weights["tok.weight"])
    assert not torch.equal(model.mid.weight, weights["mid.weight"])
    torch.testing.assert_close(model(OLD), before, atol=1e-5, rtol=0)
    memory.verify(OLD)


def test_freeze_holds_a_layer_that_is_never_called() -> None:
    model = Tied(lambda m, h: F.linear(h, m.spare.weight))
    model.spare = nn.Linear(6, 3)
    memory = GPM(model, unsupported="freeze")
    train(memory, OLD)
    assert memory.consolidate(OLD)["spare"] == 7


@pytest.mark.parametrize("settings", [{"unsupported": "free"}, {"exclude": ["tok"]}, {"protect": ["mid"]}], ids=str)
def test_a_user_who_accepts_it_gets_no_error(settings: dict) -> None:
    model = Tied(MULTIPLIED["linear"])
    memory = GPM(model, threshold=0.5, **settings)
    train(memory, OLD)
    memory.consolidate(OLD)
    before = model.tok.weight.detach().clone()
    train(memory, NEW)
    assert not torch.equal(model.tok.weight, before)


def test_what_an_excluded_part_does_is_its_own_affair() -> None:
    class Readout(nn.Module):
        def forward(self, h: Tensor, weight: Tensor) -> Tensor:
            return F.linear(h, weight)

    model = Tied(lambda m, h: m.readout(h, m.tok.weight))
    model.readout = Readout()
    with pytest.raises(ConsolidationError, match="'tok'"):
        GPM(model, exclude=["readout"]).consolidate(OLD)  # old outputs would move through the readout
    GPM(model, exclude=["tok"]).consolidate(OLD)


def test_a_module_without_a_rule_that_shares_a_protected_weight_is_noticed() -> None:
    class Readout(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, h: Tensor) -> Tensor:
            return F.linear(h, self.weight)

    model = Tied(lambda m, h: m.readout(h))
    model.readout = Readout(model.tok.weight)
    with pytest.raises(ConsolidationError, match="'tok'"):
        GPM(model).consolidate(OLD)
    GPM(model, exclude=["readout"]).consolidate(OLD)


def test_a_tied_layer_is_the_remedy_that_the_error_gives() -> None:
    model = Tied(lambda m, h: m.out(h))
    model.out = nn.Linear(6, 12, bias=False)
    model.out.weight = model.tok.weight
    memory = GPM(model, threshold=1.0)
    memory.consolidate(OLD)
    before = model(OLD).detach()
    train(memory, NEW)
    torch.testing.assert_close(model(OLD), before, atol=1e-5, rtol=0)


def test_a_weight_that_no_step_moved_raises_no_alarm() -> None:
    model = Tied(MULTIPLIED["linear"])
    memory = GPM(model, threshold=0.5)
    optimizer = memory.attach(torch.optim.SGD(model.mid.parameters(), lr=0.1))
    model.tok.weight.requires_grad_(False)
    for tokens in (OLD, NEW):
        (model(tokens) - 1).square().mean().backward()
        optimizer.step()
        memory.consolidate(tokens)
    memory.verify(OLD)


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, nn.TransformerEncoderLayer])
@pytest.mark.parametrize("apart", [False, True])
def test_attentions_own_functions_are_its_own(kind: type[nn.Module], apart: bool) -> None:
    settings = {"kdim": 4, "vdim": 4} if apart and kind is nn.MultiheadAttention else {}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(6, 2, batch_first=True, **settings)

        def forward(self, x: Tensor) -> Tensor:
            if kind is nn.MultiheadAttention:
                other = x[..., :4] if apart else x
                return torch.as_tensor(self.layer(x, other, other, need_weights=apart)[0])
            return torch.as_tensor(self.layer(x))

    memory = GPM(Model(), threshold=0.5)
    memory.consolidate(torch.randn(3, 5, 6))
    assert len(memory) == 1


def test_scripted_and_vectorised_parts_pass() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.gate = nn.Linear(6, 6), torch.jit.script(nn.Sequential(nn.ReLU(), nn.Tanh()))
            self.out = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.func.vmap(lambda row: row * row.sum())(self.gate(self.body(x)))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.as_tensor(self.out(h))

    memory = GPM(Model(), threshold=0.5)
    memory.consolidate(torch.randn(9, 6))
    GPM(Model(), threshold=0.5, exclude=["gate"]).consolidate(torch.randn(9, 6))


class Clipped(nn.Linear):
    """Multiplies something other than its input, and passes over the base's forward."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input.relu(), self.weight, self.bias)


class Scaled(nn.Embedding):
    """As Gemma's embedding: the base's rule holds although the forward is its own."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2.5


class WithSquares(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input.flip(-1) ** 2, weight, bias)


def test_a_subclass_with_a_forward_of_its_own_follows_the_base_if_the_probe_finds_that_it_may() -> None:
    GPM(nn.Sequential(Scaled(12, 6), nn.Linear(6, 3)), threshold=0.5).consolidate(OLD)
    with pytest.raises(ConsolidationError, match=r"does not cover: '1' \(Clipped"):
        GPM(nn.Sequential(nn.Linear(6, 6), Clipped(6, 6))).consolidate(torch.randn(9, 6))
    with pytest.raises(ConsolidationError, match=r"does not cover: '0' \(WithSquares"):
        GPM(nn.Sequential(WithSquares(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))).consolidate(torch.randn(9, 3, 8, 8))


def patched() -> nn.Module:
    model = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].forward = lambda x: F.linear(x.flip(-1), model[0].weight, model[0].bias)  # type: ignore[method-assign]
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].register_forward_hook(lambda layer, args, output: output + args[0].square() @ layer.weight.T)
    return model


class Reads(nn.Module):
    def __init__(self, head: Head) -> None:
        super().__init__()
        self.body, self.out, self.head = nn.Linear(20, 8), nn.Linear(8, 3), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self, x)


@pytest.mark.parametrize(
    "make",
    [
        patched,
        hooked,
        lambda: Reads(lambda m, x: m.out(torch.func.functional_call(m.body, {"weight": m.body.weight.abs()}, (x,)))),
        lambda: Reads(lambda m, x: m.out(m.body(x)) * m.body.bias.mean()),
        lambda: Reads(lambda m, x: m.out(m.body(x)) / m.body.weight.norm()),
        lambda: Reads(lambda m, x: m.out(-torch.cdist(x, m.body.weight))),
        lambda: Reads(lambda m, x: m.out(torch.where(x[:, :1] > 0, m.body(x), m.body.weight[:, 0]))),
    ],
    ids=["patched forward", "hook", "functional_call", "bias as a gate", "norm", "distances", "where"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_uses_of_a_weight_are_named(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with pytest.raises(ConsolidationError, match=r"does not cover: '(0|body)'"):
        GPM(make().to(dtype), threshold=0.9).consolidate(torch.randn(9, 20, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_plain_models_pass_in_every_number_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    deep = [layer for _ in range(12) for layer in (nn.Linear(20, 20), nn.Tanh())]
    GPM(nn.Sequential(*deep).to(dtype), threshold=0.9).consolidate(torch.randn(9, 20, dtype=dtype))
    images = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(288, 3)
    )
    GPM(images.to(dtype), threshold=0.9).consolidate(torch.randn(9, 3, 8, 8, dtype=dtype))


def test_random_outputs_are_compared_with_the_same_random_numbers() -> None:
    model = Reads(lambda m, x: m.out(F.dropout(m.body(x), 0.5, training=True)))
    before = torch.random.get_rng_state()
    GPM(model, threshold=0.9).consolidate(torch.randn(9, 20, generator=torch.Generator().manual_seed(0)))
    assert len(before) == len(torch.random.get_rng_state())


def test_a_model_that_cannot_be_tested_says_so_once() -> None:
    torch.manual_seed(0)
    source = iter(range(10**6))
    model = Reads(lambda m, x: m.out(m.body(x)) * (1 + next(source)))
    with pytest.warns(UserWarning, match="could not be tested on this model: its outputs are random"):
        GPM(model, threshold=0.9).consolidate(torch.randn(9, 20))


def test_weights_that_are_tested_in_parts_are_found_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.audit.probe.TOGETHER", 1)  # each weight is a part of its own
    memory = GPM(Tied(MULTIPLIED["linear"]))
    with pytest.raises(ConsolidationError, match=r"'tok'"):
        memory.consolidate(torch.randint(0, 5, (4, 3)))
    both = nn.Sequential(nn.Embedding(12, 6), nn.Tanh(), nn.Linear(6, 12, bias=False))
    both[2].weight = both[0].weight  # two-sided; both sides belong to one part
    assert set(GPM(both, 0.9).consolidate(torch.randint(0, 5, (4, 3)))) == {"0", "2"}
