"""State that no attached optimizer moves, but other code may: buffers, and parameters that did not train, or did not exist.

No projection can protect it. A buffer's module stays in eval mode; everything else is compared.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..layers import is_norm, rule_of
from ..report import LayerCheck, check_still
from ..weights.discovery import Protection, clean
from ..weights.distributed import is_sharded, shard_of, summed
from .probe import Probe
from .trial import SIZE, relative_changes, restored

RENORMALISATIONS = 8  # a shortened row may be too long again by a rounding; 5 times were enough for a million rows
CHECKED_AT_ONCE = 2**22  # values of a checksum, against the memory that their products take
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Buffers:
    """Watches the buffers of norms, and all other selected buffers and parameters that do not train."""

    def __init__(self, protection: Protection) -> None:
        self._model, self._protection = protection.model, protection
        self._harmless: set[str] = set()  # what changes without an effect on the outputs
        self.values: dict[str, Tensor] = {}  # of the buffers that are saved with the memory, at the task's start
        self.checksums = {name: checksum(tensor) for name, tensor in self.watched()}  # of all else, at the task's start
        self.kept_in_eval: list[str] = []  # modules other than norms
        self._holding = False  # from the first remembered task on

    def of_norms(self) -> dict[str, Tensor]:
        return {
            f"{name}.{buffer}": tensor
            for name, module in self._protection.norms.items()
            for buffer, tensor in module.named_buffers(recurse=False)
            if tensor.is_floating_point()
        }

    def others(self, *, floats: bool = True) -> dict[str, Tensor]:
        """The saved buffers of modules that are no norms: those of floats, or all. The other buffers may be caches."""
        caches = {
            f"{clean(raw)}.{name}".lstrip(".")
            for raw, module in self._model.named_modules()
            for name in getattr(module, "_non_persistent_buffers_set", ())
        }
        return {
            name: tensor
            for name, tensor in self.watched()
            if not isinstance(tensor, nn.Parameter)
            and name not in caches
            and (tensor.is_floating_point() or not floats)
        }

    def watched(self) -> Iterator[tuple[str, Tensor]]:
        """All but the norms' buffers; nothing with unsupported="free", which frees everything that no rule covers.

        A parameter that may train now is watched too, if it did not train or exist when the memory was made.
        """
        known = {*self._protection.parameters, *self._protection.free.values()}  # trained when the memory was made
        for raw, module in self._model.named_modules() if self._protection.unsupported != "free" else ():
            buffers = () if is_norm(module) and rule_of(module) is None else module.named_buffers(recurse=False)
            for name, tensor in (*buffers, *module.named_parameters(recurse=False)):
                full = f"{clean(raw)}.{name}".lstrip(".")
                if tensor not in known and tensor.layout is torch.strided and self._protection.selects(full):
                    yield full, tensor

    def expect(self, checksums: Mapping[str, tuple[str, int]]) -> None:
        """Replaces the checksums by saved ones: the model's fixed tensors may be loaded later, or be the wrong ones."""
        self.checksums = {**self.checksums, **checksums}

    def _changed(self) -> dict[str, Tensor]:
        """What has another value than when the task began. Another shape or number type is another meaning."""
        now = {name: (tensor, checksum(tensor)) for name, tensor in self.watched() if name in self.checksums}
        then = self.checksums
        return {n: tensor for n, (tensor, (kind, mark)) in now.items() if kind == then[n][0] and mark != then[n][1]}

    def moving(self, probe: Probe, *, trained: bool) -> list[str]:
        """What training has changed in the first task and moves the outputs: a later task will change it too."""
        changed = {} if self._holding else self._changed()
        if not (self._holding or trained) and self._protection.unsupported == "freeze":
            changed |= self.others()  # without a step nothing tells which of them training changes
        matter: list[str] = []
        # Zeros, too: a mask that is compared with a bound does not notice small changes.
        values = (_other_value, _zeros_or_ones) if changed else ()
        trials = [value for value in values if outputs_depend(probe, changed.values(), value=value)]
        if trials:
            matter = [n for n, t in changed.items() if any(outputs_depend(probe, [t], value=value) for value in trials)]
            matter = matter or list(changed)  # together only
        self._harmless = (self._harmless | changed.keys()) - set(matter)
        return matter

    def begin_task(self, moving: Iterable[str]) -> None:
        """Notes the values that the next task must preserve; with unsupported="freeze" their modules stay in eval mode."""
        if self._protection.unsupported == "freeze":
            self.kept_in_eval = sorted({*self.kept_in_eval, *(name.rpartition(".")[0] for name in moving)})
        others = {name: tensor for name, tensor in self.others().items() if name not in self._harmless}
        self.values = {name: tensor.detach().clone() for name, tensor in {**self.of_norms(), **others}.items()}
        self.checksums = {name: checksum(tensor) for name, tensor in self.watched() if name not in self._harmless}
        self.hold()

    def hold(self) -> None:
        """Keeps the modules of frozen state in eval mode."""
        self._holding = True
        for module in self._modules():
            keep_in_eval_mode(module)

    def release(self) -> None:
        """Lets these modules change their mode again."""
        for module in self._modules():
            if vars(module).pop("train", None) is not None:  # undoes `keep_in_eval_mode`
                module.training = self._model.training

    def _modules(self) -> list[nn.Module]:
        others = {clean(name): module for name, module in self._model.named_modules()}
        return [*self._protection.norms.values(), *(others[name] for name in self.kept_in_eval if name in others)]

    def read_by(self, probe: Probe, batch: Any) -> set[str]:
        """Names what has changed since the task began and moves the outputs for a batch."""
        changed = self._changed() if self._holding else {}
        if not changed or not outputs_depend(probe, changed.values(), batch):
            return set()
        return {name for name, tensor in changed.items() if outputs_depend(probe, [tensor], batch)}

    def checks(self, probes: Collection[Probe] = (), read: Collection[str] = ()) -> list[LayerCheck]:
        """Compares all state with its value at the task's start.

        A change counts if the outputs for the probes' examples depend on the tensor, or if `read` names it because those for
        other batches do. Without a probe, every change counts except a counter's.
        """
        now = {**self.of_norms(), **self.others()}
        pairs = {n: (now[n], then) for n, then in self.values.items() if n in now}
        checks = {n: check_still(n, *pair, buffer=True) for n, pair in pairs.items() if pair[0].shape == pair[1].shape}
        reshaped = {n: pair[0] for n, pair in pairs.items() if n not in checks and not _begins_with(*pair)}
        for name, tensor in {**self._changed(), **reshaped}.items() if self._holding else ():
            counter = tensor.ndim == 0 and not tensor.is_floating_point()
            if not probes:
                matters = name in pairs or not counter
            else:
                matters = name in read or any(outputs_depend(probe, [tensor]) for probe in probes)
            checks[name] = LayerCheck(name, float(matters), 0.0, buffer=True)
        if self._holding and not probes:  # with examples, the outputs tell
            for name, tensor in self.others(floats=False).items():
                if name in self.checksums.keys() - pairs and checksum(tensor)[0] != self.checksums[name][0]:
                    checks[name] = LayerCheck(name, 1.0, 0.0, buffer=True)
        return list(checks.values())


def _begins_with(tensor: Tensor, rows: Tensor) -> bool:
    """Whether a buffer has only got more rows, as the prototypes of classes do when there are new classes."""
    if not rows.ndim or tensor.shape[1:] != rows.shape[1:] or len(tensor) < len(rows):
        return False
    return torch.equal(tensor[: len(rows)], rows.to(tensor))


@torch.no_grad()
def shorten_rows(protection: Protection) -> None:
    """Shortens all rows of fixed embeddings with a `max_norm`.

    Their forward would shorten a row when it reads it for the first time. The row would move, but no output.
    """
    modules, free = list(protection.model.modules()), set(protection.free.values())
    users: Counter[Tensor] = Counter(p for module in modules for p in module.parameters(recurse=False))
    tables = [module for module in modules if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    found = [each for each in tables if each.max_norm is not None and not is_sharded(each.weight)]
    # A layer that shares the weight reads the rows as they are: its outputs would move.
    fixed = [each for each in found if users[each.weight] == 1 and each.weight not in free]
    for each in fixed:
        rows = torch.arange(len(each.weight), device=each.weight.device)
        for _ in range(RENORMALISATIONS):
            torch.embedding_renorm_(each.weight, rows, each.max_norm or 0.0, each.norm_type)


def _other_value(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
        return tensor + (noise.to(tensor.device) * SIZE * tensor.abs().double().square().mean().sqrt().clamp(min=SIZE))
    backwards = tensor.flatten().flip(0).reshape(tensor.shape)  # so that indices stay in their range
    if not torch.equal(backwards, tensor):
        return backwards
    return tensor.logical_not() if tensor.dtype is torch.bool else tensor + 1


def _zeros_or_ones(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.any() else torch.ones_like(tensor)


@torch.no_grad()
def outputs_depend(
    probe: Probe,
    tensors: Collection[Tensor],
    batch: Any = None,
    value: Callable[[Tensor], Tensor] = _other_value,
) -> bool:
    """Whether other values of these tensors change the outputs, for a batch or for the probe's examples."""
    before = probe.outputs(batch)
    with restored(tensors):
        for tensor in tensors:
            tensor.copy_(value(tensor.detach()))
        try:
            after = probe.outputs(batch)
        except Exception:  # an index out of range, for example
            return True
    return bool((relative_changes(before, after) > probe.allowed(before, batch)).any())


def checksum(tensor: Tensor) -> tuple[str, int]:
    """The kind of a tensor and a number that changes with any of its bits, and if values change places."""
    own = shard_of(tensor)
    flat = torch.view_as_real(own) if own.is_complex() else own
    flat = (flat.flatten(1) if flat.ndim > 1 else flat.reshape(1, -1)).contiguous()
    bits = flat.view(BITS[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    by_row, columns = _factors(len(bits), 2**31, tensor.device), _factors(bits.shape[1], 1, tensor.device)
    height = max(1, CHECKED_AT_ONCE // max(1, len(columns)))
    for rows, factors in zip(bits.split(height), by_row.split(height), strict=True):
        total = total + ((rows * columns).sum(1) * factors).sum()
    return f"{tensor.dtype} {tuple(tensor.shape)}", int(summed(total) if is_sharded(tensor) else total)


def _factors(number: int, first: int, device: torch.device) -> Tensor:
    """Odd numbers without a pattern: a transposed or permuted matrix has another sum Σ_ij r_i·c_j·b_ij (mod 2⁶⁴)."""
    x = torch.arange(first, first + number, device=device) * 0x1E3779B97F4A7C15
    return ((x ^ (x >> 29)) * 0x3F58476D1CE4E5B9) | 1


def keep_in_eval_mode(module: nn.Module) -> None:
    """Keeps a module in eval mode, so that `model.train()` does not unfreeze its buffers; submodules still change mode."""
    # The next `model.train()` would undo a flag, and compiled code ignores later hooks; a partial can be copied and pickled.
    fixed = [p for p in module.parameters(recurse=False) if not p.requires_grad]
    if fixed or any(True for _ in module.buffers(recurse=False)):
        module.training = False
        object.__setattr__(module, "train", partial(_train_children, module))


def _train_children(module: nn.Module, mode: bool = True) -> nn.Module:
    for child in module.children():
        child.train(mode)
    return module
