"""Holds a module's running statistics still: it stays in eval mode, whatever model.train() says."""

from __future__ import annotations

from functools import partial

from torch import nn


def keep_in_eval_mode(module: nn.Module) -> None:
    """From now on the layer normalises by the statistics it has, in training too. Modules inside it go their own way.

    `train` is shadowed on the instance (a partial, so that the module can still be copied and pickled): a flag set
    once would be undone by the next model.train(), and a hook added later would not be seen by compiled code.
    """
    if not any(buffer.is_floating_point() for buffer in module.buffers(recurse=False)):
        return  # nothing is tracked: it normalises by the batch at hand either way
    module.training = False
    object.__setattr__(module, "train", partial(_stay, module))


def allow_train_mode(module: nn.Module, training: bool) -> None:
    if module.__dict__.pop("train", None) is not None:
        module.training = training


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    for child in module.children():
        child.train(mode)
    return module
