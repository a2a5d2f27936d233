"""The codec: any state comes back bit for bit, and a file that has changed is never read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant.memory.codec import DTYPES, DamagedError, pack, read

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits at all: NaNs with a payload, infinities, subnormals."""
    dtype, shape = draw(st.sampled_from(sorted(DTYPES, key=str))), draw(SHAPES)
    size = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=dtype).reshape(shape)
    count = size * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | tensors()
KEYS = st.text(max_size=6) | st.sampled_from(
    ["$tensor", "$tuple", "$", "a/b", "a", "~1", "__metadata__", "\ud800", "0"]
)
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda node: (
            st.lists(node, max_size=3) | st.lists(node, max_size=3).map(tuple) | st.dictionaries(KEYS, node, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit and in type; NaN is NaN."""
    if type(a) is not type(b):
        return False
    match a:
        case Tensor():
            bits = [x.reshape(-1).view(torch.uint8).tolist() for x in (a, b)]
            return a.dtype == b.dtype and a.shape == b.shape and bits[0] == bits[1]
        case dict():
            return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
        case list() | tuple():
            return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
        case float():
            return repr(a) == repr(b)
    return bool(a == b)


def stored(state: dict[str, Any], path: Path) -> dict[str, Any]:
    path.write_bytes(b"".join(pack(state)))
    return read(path)


@given(state=STATES)
def test_any_state_comes_back_bit_for_bit(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert same(stored(state, tmp_path_factory.getbasetemp() / "state.safetensors"), state)


def test_what_a_run_keeps_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": dict(net.state_dict()),
        "optimizer": {str(key): value for key, value in optimizer.state_dict()["state"].items()},
        "groups": optimizer.state_dict()["param_groups"],  # betas are a tuple
        "random": torch.get_rng_state(),
        "best": float("-inf"),
        "loss": float("nan"),
        "scale": torch.tensor(0.1, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
    }
    assert same(stored(state, tmp_path / "c"), state)


def test_parameters_views_and_shared_memory_are_saved_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"all": base, "again": base, "row": base[1], "turned": base.T, "wide": base[:1].expand(5, 4)}
    parameter = nn.Parameter(base.clone())
    back = stored({**state, "parameter": parameter}, tmp_path / "c")
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    assert type(back["parameter"]) is Tensor
    assert not back["parameter"].requires_grad
    back["all"].zero_()
    assert torch.equal(back["again"], base)


@pytest.mark.gpu
def test_a_gpus_tensors_come_back_on_the_cpu(tmp_path: Path) -> None:
    tensor = torch.randn(4, 4, device="cuda")
    back = stored({"w": tensor}, tmp_path / "c")["w"]
    assert back.device.type == "cpu"
    assert torch.equal(back, tensor.cpu())


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"optimizer": {"state": {0: 1.0}}}, "state/optimizer/state has 0 (int)"),
        ({"a": [1, {2, 3}]}, "state/a/1: a set"),
        ({"a": b"bytes"}, "state/a: a bytes"),
        ({"a": torch.zeros(2).numpy()}, "state/a: a ndarray"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "state/a: a torch.complex128 tensor"),
        ({"a": torch.eye(2).to_sparse()}, "state/a: a torch.float32 tensor (torch.sparse_coo"),
        ({"a": torch.zeros(2, device="meta")}, "meta"),
    ],
)
def test_what_it_cannot_hold_is_refused_by_name(state: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError) as error:
        pack(state)
    assert complaint in str(error.value)


def test_no_changed_bit_goes_unnoticed(tmp_path: Path) -> None:
    """Every byte of a small file, each with another bit changed: the state is the same, or the file is refused."""
    state = {"n": 1, "w": torch.tensor([1.5, -2.0]), "b": torch.tensor(True), "words": ["a", None]}
    data, path = b"".join(pack(state)), tmp_path / "c"
    noticed = 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert same(read(path), state)
        except DamagedError:
            noticed += 1
    assert noticed > 0.9 * len(data)  # all but the spaces that fill up the header


def test_words_too_long_for_those_who_read_the_format_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.codec.LONGEST_HEADER", 1000)
    pack({"words": "a" * 500})
    with pytest.raises(ValueError, match="may take 1,000"):
        pack({"words": "a" * 1000})


def test_every_tensor_lies_where_its_type_may_lie(tmp_path: Path) -> None:
    kinds = (torch.bool, torch.float64, torch.int16, torch.float32)
    size, text, *_ = pack({str(kind): torch.ones(3, dtype=kind) for kind in kinds})
    assert len(text) == int.from_bytes(size, "little")
    assert len(text) % 8 == 0
    offsets = {name: entry["data_offsets"][0] for name, entry in json.loads(bytes(text)).items() if "dtype" in entry}
    assert len(offsets) == len(kinds)
    for name, start in offsets.items():
        kind = getattr(torch, name.rpartition(".")[2])
        assert start % torch.ones((), dtype=kind).element_size() == 0


def test_no_tensor_is_copied_to_be_written() -> None:
    tensor = torch.arange(1000.0)
    _, _, written = pack({"w": tensor})
    tensor[7] = -1.0
    assert torch.frombuffer(written, dtype=torch.float32)[7] == -1.0


def test_it_is_plain_safetensors_with_tensors_by_path(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "c.safetensors"
    path.write_bytes(b"".join(pack({"model": {"fc.weight": torch.ones(2)}, "lr": 0.1})))
    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == ["state/model/fc.weight"]
        assert json.loads(file.metadata()["remnant.state"])["state"]["lr"] == 0.1
