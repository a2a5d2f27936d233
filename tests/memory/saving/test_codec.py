"""The codec: any state comes back bit for bit, and a file that has changed is never read."""

import json
import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant.memory.saving.codec import CHECKSUM, DTYPES, NAMES, STATE, DamagedError, pack, read

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits at all: NaNs with a payload, infinities, subnormals."""
    dtype, shape = draw(st.sampled_from(sorted(NAMES, key=str))), draw(SHAPES)
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


def test_one_flipped_bit_in_the_name_of_the_checksum_and_one_in_the_data_are_noticed(tmp_path: Path) -> None:
    data, path = b"".join(pack({"w": torch.tensor([1.5, -2.0])})), tmp_path / "c"
    name = data.index(CHECKSUM.encode())
    for place in range(name, name + len(CHECKSUM)):
        changed = bytearray(data)
        changed[place] ^= 1
        changed[-1] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DamagedError, match="checksum"):
            read(path)


def forged(skeleton: Any, entries: dict[str, dict[str, Any]], data: bytes = b"") -> bytes:
    """A file with any JSON, and the checksum that belongs to it."""
    digest = blake2b(skeleton.encode() if isinstance(skeleton, str) else b"", digest_size=32)
    for name, entry in entries.items():
        digest.update(f"\n{name} {DTYPES[entry['dtype']]} {tuple(entry['shape'])}\n".encode() + data)
    text = json.dumps({"__metadata__": {STATE: skeleton, CHECKSUM: digest.hexdigest()}, **entries}).encode()
    return len(text).to_bytes(8, "little") + text + data


GOOD = '{"version": 1, "state": {"a": {"$tensor": "a"}}}'
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_a_forged_file_with_the_right_checksum_is_read(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(forged(GOOD, {"a": ENTRY}, bytes(8)))
    assert torch.equal(read(tmp_path / "c")["a"], torch.zeros(2))


@pytest.mark.parametrize(
    "skeleton",
    [
        None,
        5,
        ["a"],
        "",
        "{not json",
        "[1]",
        "null",
        "7",
        '{"version": 1}',
        '{"version": 1, "state": [1]}',
        '{"version": 1, "state": null}',
        '{"version": 1, "state": {"a": {"$tensor": "b"}}}',
        '{"version": 1, "state": {"a": {"$tensor": ["a"]}}}',
        '{"version": 1, "state": {"a": {"$tensor": null}}}',
        '{"version": 1, "state": {"a": {"$tuple": 5}}}',
        '{"version": 1, "state": {"a": {"$float": "x"}}}',
        '{"version": 1, "state": {"a": {"$float": []}}}',
        '{"version": 1, "state": {"a": ' + "9" * 5000 + "}}",
        '{"version": 1, "state": ' + 10**5 * '{"a": ' + "1" + 10**5 * "}" + "}",
    ],
    ids=lambda value: str(value)[:40],
)
def test_forged_json_is_refused(skeleton: Any, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(forged(skeleton, {"a": ENTRY}, bytes(8)))
    with pytest.raises(DamagedError):
        read(tmp_path / "c")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        ENTRY | {"dtype": "F31"},
        ENTRY | {"dtype": None},
        ENTRY | {"shape": None},
        ENTRY | {"shape": [-2]},
        ENTRY | {"shape": [2.0]},
        ENTRY | {"shape": [True, 2]},
        ENTRY | {"shape": ["2"]},
        ENTRY | {"shape": [3]},
        ENTRY | {"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
        ENTRY | {"shape": [2**61], "data_offsets": [0, 2**63]},
        ENTRY | {"data_offsets": [0]},
        ENTRY | {"data_offsets": [0, 4]},
        ENTRY | {"data_offsets": [-8, 0]},
        ENTRY | {"data_offsets": [8, 16]},
        ENTRY | {"data_offsets": [0, None]},
        ENTRY | {"data_offsets": None},
        {"shape": [2], "data_offsets": [0, 8]},
    ],
    ids=str,
)
def test_a_forged_header_is_refused(entry: Any, tmp_path: Path) -> None:
    good = b"".join(pack({"a": torch.zeros(2)}))
    length = int.from_bytes(good[:8], "little")
    text = json.dumps(json.loads(good[8 : 8 + length]) | {"state/a": entry}).encode()
    (tmp_path / "c").write_bytes(len(text).to_bytes(8, "little") + text + good[8 + length :])
    with pytest.raises(DamagedError, match="cut short or not a safetensors file"):
        read(tmp_path / "c")


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[1]", b'"a"', b"[" * 10**5, b"\xff\xfe", b'{"__metadata__": 5}', b"1e999"]
)
def test_a_header_that_is_another_json_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DamagedError):
        read(tmp_path / "c")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sparse files and kilobytes in ru_maxrss")
def test_a_sparse_file_is_refused_without_memory_for_its_tensors(tmp_path: Path) -> None:
    size, path = 2**28, tmp_path / "c"
    path.write_bytes(forged(GOOD, {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}))
    os.truncate(path, path.stat().st_size + size)
    script = """if True:
        import sys, resource, pathlib
        from remnant.memory.saving.codec import DamagedError, read
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = peak()
        try:
            read(pathlib.Path(sys.argv[1]))
        except DamagedError as error:
            print(peak() - before, error)
    """
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    kilobytes, _, reason = done.stdout.partition(" ")
    assert "checksum" in reason
    assert int(kilobytes) < 32_000


def test_words_too_long_for_those_who_read_the_format_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.saving.codec.LONGEST_HEADER", 1000)
    pack({"words": "a" * 500})
    with pytest.raises(ValueError, match="may have 1,000 bytes"):
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
