"""A pretend GPU for machines without one: its tensors say that they are on "cuda:0", and the CPU computes them.

As on a real GPU, an operation on tensors of two devices fails, numpy needs a copy, random numbers need a generator of the
device, and code takes its branches for GPUs. There are no kernels to start and nothing to wait for.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock


def _load() -> None:
    """Compiles and loads device.cpp. torch asks for GPUs when it is imported, and remembers the answer."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch_folder = Path(spec.origin).parent
    ctypes.CDLL(str(torch_folder / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
    with TemporaryDirectory() as folder:
        command = ["g++", "-std=c++20", "-shared", "-fPIC", Path(__file__).with_name("device.cpp"), "-o", "device.so"]
        command += [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
        subprocess.run(command, check=True, cwd=folder)
        ctypes.CDLL(f"{folder}/device.so")


_load()

import replaying  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
READ_BY_THE_HOST = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default}


_generators: dict[int, torch.Generator] = {}  # of the pretend GPU, by the address of torch's own object


class Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        made = torch._C.Generator()
        if on_gpu(device):
            _generators[made._cdata] = made
        return made


class GPUTensor(Tensor):
    on_cpu: Tensor

    @staticmethod
    def __new__(cls, x: Tensor) -> GPUTensor:
        sizes = {"strides": x.stride(), "storage_offset": x.storage_offset()} if x.layout is torch.strided else {}
        made = torch.Tensor._make_wrapper_subclass(cls, x.size(), dtype=x.dtype, layout=x.layout, device=GPU, **sizes)
        made.on_cpu = x
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"GPUTensor({self.on_cpu})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copy: Any = self.detach().clone()
            memo[id(self)] = nn.Parameter(copy, self.requires_grad) if isinstance(self, nn.Parameter) else copy
            memo[id(self)].requires_grad_(self.requires_grad)
        return memo[id(self)]

    def tolist(self) -> Any:
        return self.on_cpu.tolist()

    def numpy(self, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    def untyped_storage(self) -> Any:
        return self.on_cpu.untyped_storage()

    def data_ptr(self) -> int:
        return self.on_cpu.data_ptr()


def on_gpu(device: Any) -> bool:
    return torch.device(device).type == "cuda"


no_waiting = False  # whether an operation that makes the host wait for the GPU is an error


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors: list[Tensor] = []

    def to_cpu(x: Any) -> Any:
        if isinstance(x, Tensor):
            tensors.append(x)
        return x.on_cpu if isinstance(x, GPUTensor) else x

    cpu_args, cpu_kwargs = tree_map(to_cpu, args), tree_map(to_cpu, kwargs)
    ends_on_gpu = kwargs.get("device") is None or on_gpu(kwargs["device"])
    if kwargs.get("device") is not None:
        cpu_kwargs["device"] = torch.device("cpu")
    if no_waiting and (func in READ_BY_THE_HOST or not ends_on_gpu):
        raise RuntimeError(f"the host waits for the GPU: {func}")
    if func in INDEXING and isinstance(tensors[0], GPUTensor):
        tensors = tensors[:1]  # indices may be anywhere
    elsewhere = [x for x in tensors if not isinstance(x, GPUTensor) and x.ndim]
    if elsewhere and len(elsewhere) < len(tensors) and func not in COPIES:
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {func}, {[tuple(x.shape) for x in tensors]}"
        )
    if (generator := kwargs.get("generator")) is not None and generator._cdata not in _generators:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu': {func}")
    made = func(*cpu_args, **cpu_kwargs)
    if not ends_on_gpu or (func is aten.copy_.default and not isinstance(args[0], GPUTensor)):
        return args[0] if func is aten.copy_.default else made
    wrapped = tree_map(lambda x: GPUTensor(x) if isinstance(x, Tensor) else x, made)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _empty(size: Any, dtype: Any = None, memory_format: Any = None, **unused: Any) -> Any:
    layout = memory_format or torch.contiguous_format
    return GPUTensor(_torch_empty(size, dtype=dtype, memory_format=layout, device="cpu"))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **unused: Any) -> Any:
    return GPUTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy(into: Any, x: Tensor, non_blocking: bool = False) -> Tensor:
    into.on_cpu.copy_(x.on_cpu if isinstance(x, GPUTensor) else x)
    return into


def _lstm_cell(gates: Tensor, more: Tensor, cell: Tensor, bias: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The formula of the cell, whose kernels are CUDA's own."""
    i, f, g, o = (gates + more + bias + other).chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def _made_by(maker: Any) -> Any:
    """For factories that would resize an empty tensor, which the pretend tensors cannot follow."""
    return lambda *args, dtype=None, **unused: GPUTensor(maker(*args, dtype=dtype, device="cpu"))


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "CUDA")
_library.impl("empty_strided", _empty_strided, "CUDA")
_library.impl("copy_", _copy, "CUDA")
_library.impl("_thnn_fused_lstm_cell", _lstm_cell, "AutogradCUDA")
for name in ("arange", "arange.start", "arange.start_step"):
    _library.impl(name, _made_by(torch.arange), "CUDA")
for name in ("eye", "eye.m"):
    _library.impl(name, _made_by(torch.eye), "CUDA")


class Stream:
    """A stream or an event. Everything is done at once, so nothing has to be waited for."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        self.device = GPU

    def record(self, stream: Any = None) -> None:
        pass

    wait_stream = wait_event = record_event = synchronize = record

    def query(self) -> bool:
        return True


POOL = object()  # stands for a graph's memory pool


class Graph(replaying.Graph):
    """Also records operations that draw random numbers: they draw others when they are replayed, as on a GPU."""

    may_draw = True

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        super().capture_begin(replaying.POOL, capture_error_mode)


def _empty_unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
    return _torch_empty(*size, **options)


_torch_empty = torch.empty


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """Inside the block, torch has one GPU."""
    default = torch.default_generator
    replaced: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "a pretend GPU",
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_rng_state": lambda device=None: default.get_state(),
        "set_rng_state": lambda state, device=None: default.set_state(state),
        "manual_seed_all": lambda seed: None,
        "default_generators": (default,),
        "Stream": Stream,
        "Event": Stream,
        "stream": lambda stream: nullcontext(),
        "set_stream": lambda stream: None,
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: POOL,
        "mem_get_info": lambda device=None: (1, 1),
    }
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "Generator", Generator))
        stack.enter_context(mock.patch.object(torch, "empty", _empty_unpinned))
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrites)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        yield GPU


@contextmanager
def without_waiting() -> Iterator[None]:
    """Inside the block, an operation that makes the host wait for the GPU is an error."""
    global no_waiting
    no_waiting = True
    try:
        yield
    finally:
        no_waiting = False
