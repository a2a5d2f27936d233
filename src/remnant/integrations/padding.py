"""Batches of token sequences without their padding, which is no input of any task."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor


class Unpadded:
    """The batches of a loader, each cut into batches of sequences that have the same length and no padding.

    A sequence without its padding gives the same outputs, so this is exact. It needs a mask of ones and zeros with the zeros
    at the end (`padding_side="right"`). Other batches stay as they are.
    """

    def __init__(self, batches: Iterable[Any], mask: str = "attention_mask") -> None:
        self._batches, self._mask = batches, mask

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            mask = batch.get(self._mask) if isinstance(batch, Mapping) else None
            if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
                yield batch
            elif bool((mask[:, 1:] > mask[:, :-1]).any()):
                warnings.warn(
                    "Padding on the left is remembered as if it were input, which leaves less room for new tasks. Pad on "
                    'the right (padding_side="right").',
                    stacklevel=2,
                )
                yield batch
            else:
                yield from _by_length(batch, mask)


def _by_length(batch: Mapping[str, Any], mask: Tensor) -> Iterator[dict[str, Any]]:
    lengths = mask.bool().sum(1)
    for length in lengths[lengths > 0].unique().tolist():
        chosen = lengths == length
        yield {name: _cut(value, chosen, mask, length) for name, value in batch.items()}


def _cut(value: Any, chosen: Tensor, mask: Tensor, length: int) -> Any:
    """The chosen examples of a tensor; of one entry per token, without the padding."""
    if not isinstance(value, Tensor) or not value.ndim or len(value) != len(mask):
        return value
    per_token = value.shape[:2] == mask.shape and (value.ndim > 2 or not value.is_floating_point() or value is mask)
    return value[chosen][:, :length] if per_token else value[chosen]
