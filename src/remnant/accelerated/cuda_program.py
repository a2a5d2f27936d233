"""Compiles CUDA source at run time, with the compiler library that torch brings, and launches it on torch's streams."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MAX_SHARED_MEMORY = 8  # the driver's number of a kernel's attribute


class KernelError(RuntimeError):
    """A kernel is not available on this machine. The same work can be done in slower ways."""


class Kernel:
    """One function of a CUDA source, compiled for one device with some sizes as macros.

    The source defines an int `shared_bytes`, the shared memory that a block needs.
    """

    def __init__(self, source: Path, name: str, sizes: Mapping[str, int], device: torch.device) -> None:
        torch.cuda.init()
        major, minor = torch.cuda.get_device_capability(device)
        options = [f"-D{size}={value}" for size, value in sizes.items()]
        options += [f"-I{source.parent}", f"--gpu-architecture=sm_{major}{minor}", "--std=c++17"]
        program = _compile(_compiler(), source, options)
        self.context, self.function, module = c_void_p(), c_void_p(), c_void_p()
        number = c_int()
        _call("cuDeviceGet", byref(number), device.index if device.index is not None else torch.cuda.current_device())
        _call("cuDevicePrimaryCtxRetain", byref(self.context), number)  # torch uses the same context
        with self._current_context():
            _call("cuModuleLoadData", byref(module), program)
            _call("cuModuleGetFunction", byref(self.function), module, name.encode())
            at, size, shared = c_void_p(), c_size_t(), c_int()
            _call("cuModuleGetGlobal_v2", byref(at), byref(size), module, b"shared_bytes")
            _call("cuMemcpyDtoH_v2", byref(shared), at, size)
            self.shared = shared.value
            _call("cuFuncSetAttribute", self.function, c_int(MAX_SHARED_MEMORY), shared)

    def launch(self, blocks: int, threads: int, *arguments: Tensor | int | None) -> None:
        """Launches the kernel on the current stream. Tensors become pointers, and must live until the kernel has run."""
        values = [
            c_int(value) if isinstance(value, int) else c_void_p(value if value is None else value.data_ptr())
            for value in arguments
        ]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        device = next(value.device for value in arguments if isinstance(value, Tensor))
        stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
        shape = (c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, self.shared))
        with self._current_context():  # torch may have done nothing in this thread yet
            _call("cuLaunchKernel", self.function, *shape, stream, pointers, c_void_p())

    @contextmanager
    def _current_context(self) -> Iterator[None]:
        _call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", byref(c_void_p()))


def _compile(compiler: ctypes.CDLL, source: Path, options: list[str]) -> bytes:
    program = c_void_p()

    def read(what: str) -> bytes:
        size = c_size_t()
        if getattr(compiler, f"nvrtcGet{what}Size")(program, byref(size)):
            raise KernelError("The CUDA compiler library returns no result.")
        text = ctypes.create_string_buffer(size.value)
        getattr(compiler, f"nvrtcGet{what}")(program, text)
        return text.raw

    if compiler.nvrtcCreateProgram(byref(program), source.read_bytes(), source.name.encode(), 0, None, None):
        raise KernelError(f"The CUDA compiler library does not accept {source.name}.")
    try:
        words = (c_char_p * len(options))(*(option.encode() for option in options))
        if compiler.nvrtcCompileProgram(program, len(options), words):
            log = read("ProgramLog").decode(errors="replace")
            first = next((line for line in log.splitlines() if "error" in line), log.strip("\0\n"))
            raise KernelError(f"{source.name} does not compile: {first}")
        return read("CUBIN")
    finally:
        compiler.nvrtcDestroyProgram(byref(program))


@cache
def _compiler() -> ctypes.CDLL:
    torch_folder = Path(torch.__file__).parent
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    found = sorted(torch_folder.parent.glob(f"nvidia/*/lib/{name}"))
    for builtins in (part for path in found for part in path.parent.glob("libnvrtc-builtins.so*")):
        with suppress(OSError):
            ctypes.CDLL(str(builtins))  # the compiler needs it from its own folder, but may not search there
    for path in (*found, torch_folder / "lib" / "libcaffe2_nvrtc.so", name):
        with suppress(OSError):
            library = ctypes.CDLL(str(path))
            if hasattr(library, "nvrtcCompileProgram"):  # also true of a library that links to the compiler
                return library
    raise KernelError("The CUDA compiler library (libnvrtc) was not found; it comes with torch's CUDA packages.")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelError(f"The CUDA driver library cannot be opened: {error}") from None


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    code = getattr(driver, name)(*arguments)
    if code:
        words = c_char_p()
        driver.cuGetErrorString(code, byref(words))
        raise KernelError(f"{name}: {(words.value or b'error ' + str(code).encode()).decode()}")
