"""Validation recorded into a CUDA graph: the host makes one call instead of thirty a batch."""

from __future__ import annotations

from collections.abc import Generator, Mapping

import torch
import torch.nn.functional as F

from remnant.data import Split
from remnant.evaluation import Evaluation, Pending, sum_up
from remnant.methods import Method
from remnant.training import Blocking, Validation

from .recording import recording


class RecordedValidation(Validation):
    """Plain the first time, recorded the second, replayed from then on.

    The first time is plain because libraries set themselves up on first use, which a capture must not see. A graph reads the
    tensors it was captured with, so the splits are kept here for as long as it lives.
    """

    def __init__(self, method: Method, splits: Mapping[int, Split], batch: int) -> None:
        super().__init__(method, splits, batch)
        self._times = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def evaluation(self) -> Generator[Blocking | None, None, Evaluation]:
        if self._times == 1:
            self._capture()
        self._times += 1
        if self._graph is None:
            return (yield from super().evaluation())
        yield self._graph.replay
        pending = Pending(self._sums, self.sizes, with_loss=True)
        while not pending.ready:
            yield None
        return pending.result()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with recording(graph):
                self._sums, _ = sum_up(self.method.logits, self.splits, batch_size=self.batch, loss=F.cross_entropy)
        except RuntimeError as error:
            self.fallback = f"validation is not captured: {str(error).splitlines()[0]}"
        else:
            self._graph = graph


def can_be_recorded(method: Method) -> bool:
    """Whether the class that defines the method's `logits` says that they keep to a step's rules.

    To try is not enough: a capture that freezes what should have changed does not fail.
    """
    owner = next(kind for kind in type(method).__mro__ if "logits" in vars(kind))
    return bool(vars(owner).get("logits_recordable", False)) and "logits" not in vars(method)
