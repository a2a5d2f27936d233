"""Normalisation layers: no rule gives them rows, so their running statistics are kept as they are."""

from functools import partial

from torch import nn


def keep_in_eval_mode(module: nn.Module) -> None:
    """Keeps a module's buffers as they are, whatever `model.train()` does; its submodules still change their mode.

    A flag would be undone by the next `model.train()`, and compiled code ignores hooks that are added later. So `train` is
    replaced on the instance, by a partial, with which the module can still be copied and pickled.
    """
    if not any(buffer.is_floating_point() for buffer in module.buffers(recurse=False)):
        return  # without statistics, it normalises by the batch in both modes
    module.training = False
    object.__setattr__(module, "train", partial(_train_children, module))


def allow_train_mode(module: nn.Module, training: bool) -> None:
    """Undoes `keep_in_eval_mode`."""
    if module.__dict__.pop("train", None) is not None:
        module.training = training


def _train_children(module: nn.Module, mode: bool = True) -> nn.Module:
    for child in module.children():
        child.train(mode)
    return module
