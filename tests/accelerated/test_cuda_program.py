"""A missing or broken library raises KernelError, after which slower steps are taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from remnant.accelerated.cuda_program import KernelError, _compiler


def test_damaged_libraries_are_reported_as_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = tmp_path / "nvidia" / "cuda_nvrtc" / "lib"
    libraries.mkdir(parents=True)
    for name in ("libnvrtc.so.0", "libnvrtc-builtins.so.0.1"):
        (libraries / name).write_text("cut off")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "0.1")
    with pytest.raises(KernelError, match=r"libnvrtc.*not found"):
        _compiler.__wrapped__()
