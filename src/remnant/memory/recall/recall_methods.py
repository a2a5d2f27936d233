"""The methods of GPM that bring an old task's network back."""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from ..audit.verification import Verifier
from ..record import recorder
from ..record.recorder import Forward
from .recall import Recall
from .recognition import Recognition


class RecallMethods:
    """`recall`, `recalled`, `recalling` and `which_task`: the methods of GPM that need `recall=True`."""

    _model: nn.Module
    _recall: Recall | None
    _verifier: Verifier

    def _recalling(self) -> Recall:
        if self._recall is None:
            raise RuntimeError("This memory cannot recall: make it with GPM(model, recall=True).")
        return self._recall

    def recall(self, task: int) -> AbstractContextManager[None]:
        """Turns the model into the network of an old task inside a `with` block, with its old outputs for every input.

        Each protected weight becomes W·M_t·M_tᵀ, where M_t are the directions remembered up to task t, and every other
        trained tensor gets the task's own value. The block is read-only: steps in it are an error.

        Args:
            task: The number of the task, from 0.

        Returns:
            A context manager, for the `with` block.

        Raises:
            IndexError: If there is no such task.
            RuntimeError: If the memory was made without `recall=True`, or a parameter has changed its shape.

        Example:
            >>> import torch
            >>> from remnant import GPM
            >>> model, x = nn.Linear(4, 2), torch.ones(4)
            >>> memory = GPM(model, recall=True)
            >>> optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.1))
            >>> added = memory.consolidate([torch.randn(20, 2) @ torch.randn(2, 4)])
            >>> with memory.recall(0):
            ...     before = model(x)
            >>> model(x).sum().backward()
            >>> optimizer.step()
            >>> with memory.recall(0):
            ...     print(torch.allclose(model(x), before))
            True
        """
        return self._recalling().reading(task)

    def recalled(self, task: int) -> dict[str, Tensor]:
        """Returns the network of an old task as a state dict.

        Args:
            task: The number of the task, from 0.

        Returns:
            The `state_dict`, to load into a copy of the model.

        Raises:
            IndexError: If there is no such task.
            RuntimeError: As for `recall`.
        """
        with self.recall(task):
            return copy.deepcopy(self._model.state_dict())

    @contextmanager
    def recalling(self) -> Iterator[None]:
        """Lets you train the last task's network as it will be recalled, inside a `with` block.

        Recall drops the part of W outside M_t, and training in the block makes up for that. Steps change only directions that
        are new with the task, so no earlier task changes.
        """
        begun = False
        try:
            with self._recalling().training():
                begun = True
                yield
        finally:
            if begun:  # an exception ends the training, and what it has trained stays
                self._verifier.remember_again()

    def which_task(self, batch: Any, *, forward: Forward | None = None) -> Recognition:
        """Recognises the task of each example: the smallest ‖x − B_t·B_tᵀ·x‖ over tasks t, at the first protected layer.

        B_t are the directions of task t's own inputs.

        Args:
            batch: A batch of examples, as for `consolidate`. Its targets, if there are any, are not used.
            forward: A function (model, batch) that calls the model, as in `consolidate`.

        Returns:
            For each example the `task` and the `confidence` 1 − best/second, which is 0 if two tasks fit equally well.

        Raises:
            RuntimeError: If the memory was made without `recall=True`, or no task is remembered yet.
            ValueError: If the batch is empty, or its inputs reach another layer first than those of the old tasks.
        """
        return self._recalling().recognise(batch, forward or recorder.call)
