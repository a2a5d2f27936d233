"""Chooses the fastest way to take a method's steps."""

from collections.abc import Mapping

from remnant.data import Split
from remnant.methods import Method
from remnant.training import EagerSteps, Executor, Steps, Validation, Work

from . import fused_mlp, manual_backward
from .cuda_graph import CapturedSteps, CapturedValidation, can_capture_validation

STEP_KINDS = ("auto", "captured", "eager")


class FastestExecutor(Executor):
    """Takes steps in the fastest way that the method, the network and the device allow.

    `kind` is "auto" for the fastest way, "captured" for CUDA graphs at most, "eager" for one step after the other.
    """

    def __init__(self, kind: str = "auto") -> None:
        self.kind = kind
        self._capture_validation = False

    def steps(self, method: Method, train: Split, batch: int) -> Work[Steps]:
        steps = yield from self._fastest(method, train, batch)
        # If the steps could not be captured, the validation cannot be either.
        fast = method.device.type == "cuda" and not isinstance(steps, EagerSteps)
        self._capture_validation = fast and can_capture_validation(method)
        return steps

    def validation(self, method: Method, splits: Mapping[int, Split], batch: int) -> Validation:
        return (CapturedValidation if self._capture_validation else Validation)(method, splits, batch)

    def _fastest(self, method: Method, train: Split, batch: int) -> Work[Steps]:
        if self.kind == "auto" and fused_mlp.fits(method, batch):
            fused = fused_mlp.FusedSteps(method, train, batch)
            yield fused.compile
            if fused.missing is None:
                return fused
            self.fallback = f"an epoch is not one kernel: {fused.missing}"
        if self.kind == "auto" and manual_backward.fits(method):
            return manual_backward.ManualBackwardSteps(method, train, batch)
        if self.kind != "eager" and train.x.device.type == "cuda":
            try:
                captured = CapturedSteps(method, train, batch)
                yield from captured.capture()
                return captured
            except RuntimeError as error:
                self.fallback = f"steps are not captured: {str(error).splitlines()[0]}"
                self.kind = "eager"  # for later tasks too: a failed capture keeps its memory
        return EagerSteps(method, train, batch)
