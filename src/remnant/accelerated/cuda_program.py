"""CUDA source compiled when it is needed, by the compiler library that comes with torch, and launched on torch's streams."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MOST_SHARED = 8  # the driver's number for a kernel's limit of shared memory


class KernelError(RuntimeError):
    """A kernel cannot be had on this machine; there are slower ways without it."""


class Kernel:
    """One function of a source, for one device. Launches go to the current stream, like torch's own.

    `shared_bytes` of the source, an int, says how much shared memory a block has.
    """

    def __init__(self, source: Path, name: str, sizes: Mapping[str, int], device: torch.device) -> None:
        torch.cuda.init()
        major, minor = torch.cuda.get_device_capability(device)
        options = [f"-D{size}={value}" for size, value in sizes.items()]
        options += [f"-I{source.parent}", f"--gpu-architecture=sm_{major}{minor}", "--std=c++17"]
        program = compile_source(_compiler(), source, options)
        self.context, self.function, module = c_void_p(), c_void_p(), c_void_p()
        number = c_int()
        _call("cuDeviceGet", byref(number), device.index if device.index is not None else torch.cuda.current_device())
        _call("cuDevicePrimaryCtxRetain", byref(self.context), number)  # the one torch is in
        _call("cuCtxPushCurrent_v2", self.context)
        try:
            _call("cuModuleLoadData", byref(module), program)
            _call("cuModuleGetFunction", byref(self.function), module, name.encode())
            at, size, shared = c_void_p(), c_size_t(), c_int()
            _call("cuModuleGetGlobal_v2", byref(at), byref(size), module, b"shared_bytes")
            _call("cuMemcpyDtoH_v2", byref(shared), at, size)
            self.shared = shared.value
            _call("cuFuncSetAttribute", self.function, c_int(MOST_SHARED), shared)
        finally:
            _call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def launch(self, blocks: int, threads: int, *arguments: Tensor | int | None) -> None:
        """Tensors go as pointers, None as a null one; they must live until the stream gets there."""
        values = [
            c_int(value) if isinstance(value, int) else c_void_p(value if value is None else value.data_ptr())
            for value in arguments
        ]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        device = next(value.device for value in arguments if isinstance(value, Tensor))
        stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
        shape = (c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, self.shared))
        _call("cuCtxPushCurrent_v2", self.context)  # a thread may be one that torch has done nothing in
        try:
            _call("cuLaunchKernel", self.function, *shape, stream, pointers, c_void_p())
        finally:
            _call("cuCtxPopCurrent_v2", byref(c_void_p()))


def compile_source(compiler: ctypes.CDLL, source: Path, options: list[str]) -> bytes:
    """The program for the architecture in `options`."""
    program = c_void_p()
    if compiler.nvrtcCreateProgram(byref(program), source.read_bytes(), source.name.encode(), 0, None, None):
        raise KernelError(f"The CUDA compiler library takes no source ({source.name}).")
    try:
        words = (c_char_p * len(options))(*(option.encode() for option in options))
        if compiler.nvrtcCompileProgram(program, len(options), words):
            log = _fetched(compiler.nvrtcGetProgramLogSize, compiler.nvrtcGetProgramLog, program).decode(
                errors="replace"
            )
            first = next((line for line in log.splitlines() if "error" in line), log.strip("\0\n"))
            raise KernelError(f"{source.name} does not compile: {first}")
        return _fetched(compiler.nvrtcGetCUBINSize, compiler.nvrtcGetCUBIN, program)
    finally:
        compiler.nvrtcDestroyProgram(byref(program))


def _fetched(size_of: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: c_void_p) -> bytes:
    size = c_size_t()
    if size_of(program, byref(size)):
        raise KernelError("The CUDA compiler library does not say what it made.")
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    return text.raw


@cache
def _compiler() -> ctypes.CDLL:
    for path in _compilers():
        with suppress(OSError):
            library = ctypes.CDLL(str(path))
            if hasattr(library, "nvrtcCompileProgram"):  # found through a library that is linked to it, too
                return library
    raise KernelError("The CUDA compiler library (libnvrtc) was not found; it comes with torch's CUDA packages.")


def _compilers() -> Iterator[Path | str]:
    """Where the library may be. What it opens itself lies beside it, but it need not look there: so that is opened first."""
    torch_folder = Path(torch.__file__).parent
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    for found in sorted(torch_folder.parent.glob(f"nvidia/*/lib/{name}")):
        for part in found.parent.glob("libnvrtc-builtins.so*"):
            with suppress(OSError):  # then the compiler may find it, or says that it cannot
                ctypes.CDLL(str(part))
        yield found
    yield torch_folder / "lib" / "libcaffe2_nvrtc.so"
    yield name


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
