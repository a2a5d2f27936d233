"""Buffers, such as running means. No optimizer moves them, so instead of a projection their module stays in eval mode."""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from ..discovery import Protection, clean
from ..layers import is_norm, rule_of
from ..report import LayerCheck, check_still
from .probe import Probe, change_of, restored


class Buffers:
    """The buffers of norms, and other float buffers that are selected and saved with the model (the rest are caches)."""

    def __init__(self, protection: Protection) -> None:
        self._model, self._protection = protection.model, protection
        self._initial = {name: tensor.detach().clone() for name, tensor in self.others().items()}
        self._harmless: set[str] = set()  # buffers that change without an effect on the outputs
        self.values: dict[str, Tensor] = {}  # at the task's start
        self.kept_in_eval: list[str] = []  # modules other than norms

    def of_norms(self) -> dict[str, Tensor]:
        return {
            f"{name}.{buffer}": tensor
            for name, module in self._protection.norms.items()
            for buffer, tensor in module.named_buffers(recurse=False)
            if tensor.is_floating_point()
        }

    def others(self) -> dict[str, Tensor]:
        """The buffers of other modules; none with unsupported="free", which frees all that no rule covers."""
        if self._protection.unsupported == "free":
            return {}
        return {
            name: tensor
            for raw, module in self._model.named_modules()
            if not is_norm(module) or rule_of(module) is not None
            for name, tensor in module.named_buffers(prefix=clean(raw), recurse=False)
            if tensor.is_floating_point() and self._protection.selects(name)
            if name.rpartition(".")[2] not in getattr(module, "_non_persistent_buffers_set", ())
        }

    def moving(self, probe: Probe) -> list[str]:
        """Buffers that training has changed and that move the outputs: a later task will change them too."""
        now = self.others()
        changed = {
            name: first.to(now[name])
            for name, first in self._initial.items()
            if name in now and now[name].shape == first.shape and not torch.equal(now[name], first.to(now[name]))
        }
        matter: list[str] = []
        if changed and self._matter(probe, {now[name]: first for name, first in changed.items()}):
            matter = [name for name, first in changed.items() if self._matter(probe, {now[name]: first})]
            matter = matter or list(changed)  # together only
        self._harmless = (self._harmless | changed.keys()) - set(matter)
        return matter

    @torch.no_grad()
    def _matter(self, probe: Probe, initial: Mapping[Tensor, Tensor]) -> bool:
        """Whether the outputs are different with the buffers' initial values."""
        before = probe.outputs()
        with restored(initial):
            for buffer, value in initial.items():
                buffer.copy_(value)
            return change_of(before, probe.outputs()) > probe.rounding

    def begin_task(self, moving: Iterable[str]) -> None:
        """Notes the values that the next task must preserve; with unsupported="freeze" their modules stay in eval mode."""
        if self._protection.unsupported == "freeze":
            self.kept_in_eval = sorted({*self.kept_in_eval, *(name.rpartition(".")[0] for name in moving)})
        others = {name: tensor for name, tensor in self.others().items() if name not in self._harmless}
        self.values = {name: tensor.detach().clone() for name, tensor in {**self.of_norms(), **others}.items()}
        self._initial = {}
        self.hold()

    def hold(self) -> None:
        for module in self._modules():
            keep_in_eval_mode(module)

    def release(self) -> None:
        for module in self._modules():
            if vars(module).pop("train", None) is not None:  # undoes `keep_in_eval_mode`
                module.training = self._model.training

    def _modules(self) -> list[nn.Module]:
        others = {clean(name): module for name, module in self._model.named_modules()}
        return [*self._protection.norms.values(), *(others[name] for name in self.kept_in_eval if name in others)]

    def checks(self) -> list[LayerCheck]:
        now = {**self.of_norms(), **self.others()}
        return [check_still(name, now[name], then, buffer=True) for name, then in self.values.items() if name in now]


def keep_in_eval_mode(module: nn.Module) -> None:
    """Keeps a module's buffers as they are, whatever `model.train()` does; its submodules still change their mode."""
    # The next `model.train()` would undo a flag, and compiled code ignores later hooks; a partial can be copied and pickled.
    if any(buffer.is_floating_point() for buffer in module.buffers(recurse=False)):
        module.training = False
        object.__setattr__(module, "train", partial(_train_children, module))


def _train_children(module: nn.Module, mode: bool = True) -> nn.Module:
    for child in module.children():
        child.train(mode)
    return module
