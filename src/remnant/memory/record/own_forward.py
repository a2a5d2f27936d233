"""Records the inputs of a layer with its own forward, such as a subclass, where they reach the forward that has a rule.

OPT's position embedding takes an attention mask, for example, and passes the positions on to `nn.Embedding.forward`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..weights.protected import Site
from .batches import map_tensors, tensors_in

Read = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]  # reads the arguments of a call


@contextmanager
def read_calls(site: Site, described: type, read: Read) -> Iterator[None]:
    """Gives `read` the arguments of each call of `described.forward`, or the layer's own if its forward does not call that.

    It gives copies, after the layer's forward has ended, because that forward may change its input.
    """
    calls: list[Any] = []
    inner: list[Any] = []
    original = vars(described)["forward"]

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(map_tensors((args, kwargs), torch.clone))
        inner.append([])

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is site.module and inner:
            inner[-1].append(map_tensors((args, kwargs), torch.clone))
        return original(self, *args, **kwargs)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        own, passed_on = calls.pop(), inner.pop()
        if not passed_on and site.view.one_hot:
            passed_on = [((_used_rows(site, *own),), {})]
        for given in passed_on or [own]:
            read(module, *given)

    with ExitStack() as stack:
        stack.callback(site.module.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(site.module.register_forward_hook(after).remove)
        stack.callback(setattr, described, "forward", original)
        described.forward = forward  # type: ignore[attr-defined]
        yield


def _used_rows(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The numbers of the rows that an embedding's own forward reads: those with a gradient."""
    with torch.enable_grad():
        numbers = [x for x in tensors_in(site.module.forward(*args, **kwargs)) if x.requires_grad]
        weights = [
            torch.rand(x.shape, generator=torch.Generator().manual_seed(0), device="cpu").to(x) + 1 for x in numbers
        ]
        (gradient,) = torch.autograd.grad(numbers, [site.view.weight], weights, allow_unused=True)
    return (
        torch.zeros(0, device="cpu").long()
        if gradient is None
        else gradient.to_dense().abs().sum(dim=1).nonzero().flatten()
    )
