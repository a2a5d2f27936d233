"""Rows × weight is the layer: for every layer type, every geometry, whole or in chunks."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant import GPM
from remnant.memory.layers import LayerView, conv, views_of
from remnant.memory.record.recorder import empty_grams, record_rows
from remnant.memory.subspaces import gram

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Using padding='same'")

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def whole(rows: object) -> Tensor:
    """(groups, N, n) of what a view's `rows` gave, chunks joined."""
    parts = [rows] if isinstance(rows, Tensor) else list(rows)
    return torch.cat([part.unsqueeze(0) if part.ndim == 2 else part for part in parts], dim=1)


def product(view: LayerView, rows: Tensor) -> Tensor:
    """(groups, N, outputs): rows × matrix + bias."""
    result = rows @ view.matrix(view.weight.detach()).mT
    if view.bias is not None:
        bias = view.bias.detach() if view.bias_slice is None else view.bias.detach()[slice(*view.bias_slice)]
        result = result + bias.reshape(view.groups, 1, view.outputs)
    return result


def spatial(view: LayerView, rows: Tensor, output: Tensor) -> Tensor:
    """The product laid out as a convolution's output (B, C, …)."""
    batch, places = output.shape[0], output.shape[2:]
    return product(view, rows).unflatten(1, (batch, *places)).movedim(-1, 1).flatten(0, 1).movedim(0, 1)


def only_view(layer: nn.Module) -> LayerView:
    views = views_of(layer)
    assert views is not None
    assert len(views) == 1
    return views[0]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    dims = draw(st.integers(1, 3))

    def per_dim(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    kernel, dilation = per_dim(1, 3), per_dim(1, 2)
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding = draw(st.sampled_from(["same", "valid", "numbers"]))
    stride = (1,) * dims if padding == "same" else per_dim(1, 3)
    groups = draw(st.integers(1, 3))
    depthwise = draw(st.booleans())
    channels = groups * (1 if depthwise else draw(st.integers(1, 2)))
    outputs = groups * draw(st.integers(1, 2))
    size = tuple(d * (k - 1) + 1 + draw(st.integers(0, 3)) for k, d in zip(kernel, dilation, strict=True))
    numbers = tuple(draw(st.integers(0, min(2, n - 1))) for n in size)
    layer = CONVS[dims](
        channels,
        outputs,
        kernel,
        stride=stride,
        padding=numbers if padding == "numbers" else padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
        dtype=torch.float64,
    )
    return layer, torch.randn(draw(st.integers(1, 3)), channels, *size, dtype=torch.float64)


@given(convolutions())
@settings(max_examples=120)
def test_rows_times_weight_is_the_convolution(case: tuple[nn.Module, Tensor]) -> None:
    layer, x = case
    view = only_view(layer)
    output = layer(x).detach()
    torch.testing.assert_close(spatial(view, whole(view.rows(x)), output), output)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor, list[int] | None]:
    dims = draw(st.integers(1, 3))

    def per_dim(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    kernel, stride, dilation, padding = per_dim(1, 3), per_dim(1, 3), per_dim(1, 2), per_dim(0, 2)
    extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    size = per_dim(1, 4)
    geometry = list(zip(size, kernel, stride, dilation, padding, extra, strict=True))
    smallest = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, d, p, _ in geometry]
    assume(all(n + e > 0 for n, e in zip(smallest, extra, strict=True)) and all(n > 0 for n in smallest))
    groups = draw(st.integers(1, 2))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    ask = draw(st.booleans())
    layer = TRANSPOSED[dims](
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=padding,
        output_padding=(0,) * dims if ask else extra,
        groups=groups,
        bias=draw(st.booleans()),
        dilation=dilation,
        dtype=torch.float64,
    )
    # With output_size the layer works out the padding itself, which may be up to a stride.
    wanted = [n + min(e, s - 1) for n, e, s in zip(smallest, extra, stride, strict=True)] if ask else None
    return layer, torch.randn(draw(st.integers(1, 2)), inputs, *size, dtype=torch.float64), wanted


@given(transposed_convolutions())
@settings(max_examples=120)
def test_rows_times_weight_is_the_transposed_convolution(case: tuple[nn.Module, Tensor, list[int] | None]) -> None:
    layer, x, size = case
    view = only_view(layer)
    output = layer(x, output_size=size).detach()
    rows = whole(view.rows(x, output_size=size))
    # The rows of a sample come by phase: outputs that lie a multiple of the stride apart are together.
    places = torch.arange(output[0, 0].numel()).reshape(output.shape[2:])
    phases = itertools.product(*(range(s) for s in layer.stride))
    order = torch.cat(
        [
            places[tuple(slice(p, None, s) for p, s in zip(phase, layer.stride, strict=True))].flatten()
            for phase in phases
        ]
    )
    in_order = rows.unflatten(1, (len(x), -1))[:, :, order.argsort()].flatten(1, 2)
    torch.testing.assert_close(spatial(view, in_order, output), output)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kinds", [CONVS, TRANSPOSED])
def test_a_convolution_without_a_batch_dimension_gives_the_same_rows(dims: int, kinds: dict[int, type]) -> None:
    layer = kinds[dims](4, 6, 2, stride=2, groups=2)
    x = torch.randn(1, 4, *(5,) * dims)
    view = only_view(layer)
    assert torch.equal(whole(view.rows(x[0])), whole(view.rows(x)))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv3d(4, 2, 2, dilation=2, groups=2),
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("limit", [1, 70, 1000])
def test_rows_come_in_small_chunks_that_join_to_the_whole(
    layer: nn.Module, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 4, *(6,) * (layer.weight.ndim - 2))
    view = only_view(layer)
    unchunked = whole(view.rows(x))
    monkeypatch.setattr(conv, "CHUNK", limit)
    chunks = list(view.rows(x))
    # One line of one sample (its last dimensions) is the least that is ever unfolded.
    line = view.groups * view.inputs * layer(x).shape[3:].numel()
    assert max(chunk.numel() for chunk in chunks) <= max(limit, line)
    assert torch.equal(torch.cat(chunks, dim=1), unchunked)


def test_a_big_batch_is_never_unfolded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Conv2d(8, 4, 5, padding=2)
    x = torch.randn(32, 8, 16, 16)
    sizes: list[int] = []
    add = gram.Gram.add
    monkeypatch.setattr(conv, "CHUNK", 100_000)
    monkeypatch.setattr(gram.Gram, "add", lambda self, rows: (sizes.append(rows.numel()), add(self, rows))[1])
    memory = GPM(layer, unsupported="free")  # without the probe, which records a few examples more
    memory.consolidate(x)
    patches_of_the_batch = 32 * 16 * 16 * (8 * 25 + 1)
    assert sum(sizes) == patches_of_the_batch
    assert max(sizes) <= 100_000 * 1.01  # and the bias's constant input


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_a_linear_layer_takes_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(5, 7)
    x = torch.randn(*shape, 5)
    view = only_view(layer)
    torch.testing.assert_close(product(view, whole(view.rows(x)))[0].reshape(*shape, 7), layer(x).detach())


def test_an_embedding_is_a_linear_layer_of_one_hot_rows() -> None:
    layer = nn.Embedding(11, 3)
    index = torch.randint(11, (4, 5))
    view = only_view(layer)
    rows = F.one_hot(view.rows(index), 11).float().reshape(-1, 11)
    torch.testing.assert_close(product(view, rows.unsqueeze(0))[0].reshape(4, 5, 3), layer(index).detach())


def test_gpt2s_transposed_linear_layer() -> None:
    utils = pytest.importorskip("transformers.pytorch_utils", reason="transformers is not installed")
    layer = utils.Conv1D(7, 5)
    nn.init.normal_(layer.bias)
    x = torch.randn(2, 3, 5)
    view = only_view(layer)
    assert (view.inputs, view.outputs) == (5, 7)
    torch.testing.assert_close(product(view, whole(view.rows(x)))[0].reshape(2, 3, 7), layer(x).detach())


class Recorded:
    """An attention layer's call, seen by its views: rows of each part, and the true projections."""

    def __init__(self, layer: nn.MultiheadAttention, *args: Tensor, **kwargs: object) -> None:
        self.layer, self.args, self.kwargs = layer, args, kwargs
        views = views_of(layer)
        assert views is not None
        self.views = {view.part: view for view in views}

    def part(self, name: str) -> Tensor:
        view = self.views[name]
        return product(view, whole(view.rows(*self.args, **self.kwargs)))

    def projections(self) -> list[Tensor]:
        layer = self.layer
        weights = (
            layer.in_proj_weight.chunk(3)
            if layer.in_proj_weight is not None
            else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        )
        biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        return [
            F.linear(x, w, b).detach().reshape(-1, layer.embed_dim)
            for x, w, b in zip(self.args, weights, biases, strict=True)
        ]


def attention(**settings: object) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(8, 2, **settings).eval()
    for parameter in layer.parameters():  # biases start at zero, which would hide them
        nn.init.normal_(parameter, std=0.5)
    return layer


def attention_calls() -> list[tuple[str, nn.MultiheadAttention, tuple[Tensor, ...], dict[str, object]]]:
    torch.manual_seed(0)
    x, q, k = torch.randn(5, 3, 8), torch.randn(4, 3, 8), torch.randn(6, 3, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    ignored = torch.zeros(3, 5, dtype=torch.bool)
    ignored[1, 3:] = True
    return [
        ("self", attention(), (x, x, x), {}),
        ("cross", attention(), (q, k, k), {}),
        ("no bias", attention(bias=False), (x, x, x), {}),
        ("separate", attention(kdim=5, vdim=7), (q, torch.randn(6, 3, 5), torch.randn(6, 3, 7)), {}),
        ("batch first", attention(batch_first=True), (torch.randn(3, 4, 8), *(torch.randn(3, 6, 8),) * 2), {}),
        ("causal", attention(), (x, x, x), {"attn_mask": causal, "is_causal": True, "need_weights": False}),
        ("padding", attention(), (x, x, x), {"key_padding_mask": ignored}),
        ("both masks", attention(), (x, x, x), {"attn_mask": causal, "key_padding_mask": ignored.float()}),
        ("unbatched", attention(batch_first=True), (q[:, 0], k[:, 0], k[:, 0]), {}),
        ("dropout", attention(dropout=0.5), (x, x, x), {}),
        ("zero attention", attention(add_zero_attn=True), (x, x, x), {}),
    ]


@pytest.mark.parametrize(("layer", "args", "kwargs"), [pytest.param(*c[1:], id=c[0]) for c in attention_calls()])
def test_attentions_rows_times_its_weights_are_its_projections_and_its_output(
    layer: nn.MultiheadAttention, args: tuple[Tensor, ...], kwargs: dict[str, object]
) -> None:
    seen = Recorded(layer, *args, **kwargs)
    expected = seen.projections()
    if layer.in_proj_weight is not None:
        packed = seen.part("in_proj")
        got = [packed[place, : len(one)] for place, one in enumerate(expected)]
    else:
        got = [seen.part(f"{name}_proj")[0] for name in ("query", "key", "value")]
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)

    output = layer(*args, **kwargs)[0].detach()
    length_first = output.transpose(0, 1) if layer.batch_first and output.ndim == 3 else output
    torch.testing.assert_close(seen.part("out_proj")[0], length_first.reshape(-1, 8), atol=1e-5, rtol=1e-4)


def test_queries_shorter_than_keys_count_their_bias_once_each() -> None:
    """Rows that only fill up the shorter group must not look like inputs of the bias."""
    layer = attention()
    query, key = torch.randn(2, 1, 8), torch.randn(9, 1, 8)

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layer

        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return self.attention(query, key, key)[0]

    memory = GPM(Cross(), threshold=1.0)
    batch = [{"query": query, "key": key}]
    grams = empty_grams(memory._protection.weights)
    sinks = {weight: grams[weight.name].add for weight in memory._protection.weights}
    record_rows(memory._model, sinks, batch, lambda model, b: model(**b))
    matrix = grams["attention.in_proj"].matrix()
    assert matrix[:, -1, -1].tolist() == [2, 9, 9]
    rows = torch.cat([query.reshape(2, 8), torch.ones(2, 1)], dim=1).double()
    torch.testing.assert_close(matrix[0], rows.mT @ rows)


def every_layer() -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.Linear(3, 5),
        nn.Embedding(7, 3),
        nn.Conv1d(4, 6, 3, groups=2),
        nn.Conv2d(4, 4, (2, 3), groups=4),
        nn.Conv3d(2, 3, 2),
        nn.ConvTranspose1d(4, 6, 3, groups=2),
        nn.ConvTranspose2d(4, 2, (2, 3), groups=2),
        nn.ConvTranspose3d(2, 3, 2),
        nn.MultiheadAttention(8, 2),
        nn.MultiheadAttention(8, 2, kdim=3, vdim=5),
        nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
    ]
    return layers


@pytest.mark.parametrize("layer", every_layer(), ids=lambda layer: type(layer).__name__)
def test_a_weight_goes_to_its_matrix_and_back(layer: nn.Module) -> None:
    for view in views_of(layer) or []:
        weight = view.weight.detach()
        matrix = view.matrix(weight)
        assert matrix.shape == (view.groups, view.outputs, view.inputs)
        assert torch.equal(view.tensor(matrix), weight)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_called_by_keyword_is_heard(bias: bool) -> None:
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.conv = nn.Conv1d(4, 4, 1, bias=bias)
            self.up = nn.ConvTranspose1d(4, 4, 1, bias=bias)
            self.out = nn.Linear(4, 2, bias=bias)

        def forward(self, index: Tensor) -> Tensor:
            hidden = self.conv(input=self.embed(input=index).mT)
            return self.out(input=self.up(input=hidden, output_size=None).mT)

    added = GPM(ByKeyword()).consolidate(torch.randint(5, (3, 6)))
    assert min(added.values()) > 0


def test_inputs_the_model_overwrites_afterwards_are_remembered_as_they_were() -> None:
    """In float64, without a bias, the rows are the layer's very input: they must be copied before they change."""

    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            hidden = x * 2
            output = self.layer(hidden)
            hidden.zero_()
            return output

    memory = GPM(Overwrites().double(), threshold=1.0)
    x = torch.randn(3, 6, dtype=torch.float64)
    assert memory.consolidate(x) == {"layer": 3}
    subspace = memory.subspaces["layer"]
    torch.testing.assert_close(subspace.remove(x), torch.zeros_like(x))


def test_a_gram_does_not_depend_on_chunks_blocks_or_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(3, 50, 7, dtype=torch.float64)
    expected = rows.mT @ rows
    for chunk, block, batch in [(2**22, 1024, 50), (10, 2, 50), (64, 3, 1), (2**22, 4, 9)]:
        monkeypatch.setattr(gram, "CHUNK", chunk)
        monkeypatch.setattr(gram, "BLOCK", block)
        total = gram.Gram(3, 7, torch.device("cpu"))
        for part in rows.split(batch, dim=1):
            total.add(part)
        torch.testing.assert_close(total.matrix(), expected, atol=1e-12, rtol=1e-12)
        assert total.count == 50
