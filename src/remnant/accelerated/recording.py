"""What is queued on the device, recorded into a CUDA graph instead."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

# Kept: torch's allocator may still ask them which stream they were captured on.
_failed: list[torch.cuda.CUDAGraph] = []


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """What this thread queues meanwhile goes into the graph; others may use the device as they like.

    A garbage collection during capture may free device memory, which breaks it.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    gc.disable()
    try:
        try:
            _begin(graph, pool)
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):  # "a previous error": the one that says why is raised
                    graph.capture_end()
                raise
            graph.capture_end()
        except RuntimeError:
            _tidy_up(graph, pool)
            raise
    finally:
        gc.enable()


def _begin(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")


def _tidy_up(failed: torch.cuda.CUDAGraph, pool: Any) -> None:
    """After a capture that failed, torch's generator and allocator believe that it goes on: no random number can be drawn.

    So the allocator is told, and one more capture, which ends as it should, takes the generator along.
    """
    _failed.append(failed)
    names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # since torch 2.8, and before
    end = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
    with suppress(RuntimeError):  # where torch has done so itself
        end(torch.cuda.current_device(), pool)
    graph = torch.cuda.CUDAGraph()
    _begin(graph, torch.cuda.graph_pool_handle())
    torch.zeros((), device="cuda")
    graph.capture_end()
