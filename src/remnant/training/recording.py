"""What is queued on the device, recorded into a CUDA graph instead."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """What this thread queues meanwhile goes into the graph; others may use the device as they like.

    A garbage collection during capture may free device memory, which breaks it.
    """
    gc.disable()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()
    finally:
        gc.enable()
