"""Picks the fastest way to take a method's steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from remnant.data import Split
from remnant.methods import Method
from remnant.training import Blocking, EagerSteps, Plain, Steps, Validation

from . import fused_mlp, manual_backward
from .cuda_graph import CapturedSteps
from .fused_mlp import FusedSteps
from .manual_backward import ManualBackwardSteps
from .recorded_validation import RecordedValidation, can_be_recorded

STEPS = ("auto", "captured", "eager")  # the fastest way there is; at most CUDA graphs; one by one


class Fastest(Plain):
    """What a trainer asks for steps: those of the fastest kind that this method, network and device allow."""

    def __init__(self, steps: str = "auto") -> None:
        self.kind = steps
        self._record = False

    def steps(self, method: Method, train: Split, batch: int) -> Generator[Blocking | None, None, Steps]:
        steps = yield from self._fastest(method, train, batch)
        # Where steps could not be recorded, there is no use in trying to record the validation.
        self._record = method.device.type == "cuda" and not isinstance(steps, EagerSteps) and can_be_recorded(method)
        return steps

    def validation(self, method: Method, splits: Mapping[int, Split], batch: int) -> Validation:
        return (RecordedValidation if self._record else Validation)(method, splits, batch)

    def _fastest(self, method: Method, train: Split, batch: int) -> Generator[Blocking | None, None, Steps]:
        if self.kind == "auto" and fused_mlp.fits(method, batch):
            fused = FusedSteps(method, train, batch)
            yield fused.compile
            if fused.missing is None:
                return fused
            self.fallback = f"an epoch is not one kernel: {fused.missing}"
        if self.kind == "auto" and manual_backward.fits(method):
            return ManualBackwardSteps(method, train, batch)
        if self.kind != "eager" and train.x.device.type == "cuda":
            try:
                captured = CapturedSteps(method, train, batch)
                yield from captured.record()
                return captured
            except RuntimeError as error:
                self.fallback = f"steps are not captured: {str(error).splitlines()[0]}"
                self.kind = "eager"  # for the tasks to come as well: a capture that fails keeps its memory
        return EagerSteps(method, train, batch)
