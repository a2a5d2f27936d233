"""Chooses the fastest way to take a method's steps."""

from dataclasses import dataclass

from remnant.data import Split
from remnant.methods import Method
from remnant.training import EagerSteps, Steps, Trainer, Work

from . import fused_mlp
from .cpu_products import use_fast_products
from .cuda_graph import CapturedSteps
from .manual_backward import ManualBackwardSteps, is_linear_chain
from .norm_pool import fuse_activations

STEP_KINDS = ("auto", "captured", "eager")


@dataclass
class FastestTrainer(Trainer):
    """Takes steps in the fastest way that the method, the network and the device allow.

    `kind` is "auto" for the fastest way, "captured" for CUDA graphs on a GPU, or "eager" for one step after the other.
    """

    kind: str = "auto"

    def steps(self, method: Method, train: Split) -> Work[Steps]:
        batch, on_cpu = self.schedule.batch, method.device.type == "cpu"
        if self.kind == "auto" and on_cpu and is_linear_chain(method):
            return ManualBackwardSteps(method, train, batch)
        fuse_activations(method.network)
        if self.kind == "auto" and on_cpu:
            use_fast_products(method.network)
        if self.kind == "auto" and not on_cpu and fused_mlp.fits(method, batch):
            fused = fused_mlp.FusedSteps(method, train, batch)
            yield fused.compile
            if fused.missing is None:
                return fused
            self.fallback = f"an epoch is not one kernel: {fused.missing}"
        if self.kind != "eager" and train.x.device.type == "cuda":
            try:
                captured = CapturedSteps(method, train, batch)
                yield from captured.capture()
                return captured
            except RuntimeError as error:
                self.fallback = f"steps are not captured: {str(error).splitlines()[0]}"
                self.kind = "eager"  # for later tasks too: a failed capture keeps its memory
        return EagerSteps(method, train, batch)
