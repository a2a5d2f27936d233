"""Reads a model: which weights can be protected, which parameters must be frozen, which parameters no rule covers."""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from .errors import UnsupportedError
from .layers import LayerView, has_rule, is_norm, views_of
from .patterns import Selection
from .protected import Bias, ProtectedWeight, Site

ROOT = "model"  # the name of a model that is itself a layer
NamedView = tuple[str, nn.Module, LayerView]


@dataclass
class Protection:
    """What GPM does with each trainable parameter of a model."""

    weights: list[ProtectedWeight] = field(default_factory=list)
    frozen: dict[str, Tensor] = field(default_factory=dict)  # fixed from the second task on
    norms: dict[str, nn.Module] = field(default_factory=dict)  # their running statistics are fixed too
    free: dict[str, Tensor] = field(default_factory=dict)

    @property
    def parameters(self) -> list[Tensor]:
        """All protected and frozen parameters."""
        return [*(p for weight in self.weights for p in weight.parameters), *self.frozen.values()]


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the model inside the wrappers of torch.compile and DistributedDataParallel."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def clean(name: str) -> str:
    """Returns a name as the user wrote it, without torch.compile's wrapper."""
    return ".".join(piece for piece in name.split(".") if piece != "_orig_mod")


def discover(model: nn.Module, selection: Selection, *, bias: str, norm: str, unsupported: str) -> Protection:
    names = {id(p): clean(name) for name, p in model.named_parameters()}
    modules = {clean(name): module for name, module in model.named_modules()}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    selection.check([*filter(None, modules), *(clean(name) for name, _ in tensors)])
    lazy = [names[id(p)] for p in model.parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise UnsupportedError(f"{lazy[0]!r} has no shape yet (a lazy layer). Run one batch through the model first.")
    protection = Protection()
    views: list[NamedView] = []
    for name, module in modules.items():
        # Two modules may share a weight, and a pattern may select it under one of its names only.
        own = module.named_parameters(recurse=views_of(module) is not None, remove_duplicate=False)
        selected = {id(p): p for n, p in own if p.requires_grad and clean(f"{name}.{n}" if name else n) in selection}
        if is_norm(module) and not has_rule(module):
            if norm == "freeze" and (selected or not name or name in selection):
                protection.norms[name or ROOT] = module
            fate = protection.frozen if norm == "freeze" else protection.free
            fate.update({names[key]: p for key, p in selected.items()})
        else:
            # A weight that is computed from others (a parametrization) is not a parameter, and so not selected.
            chosen = [view for view in views_of(module) or [] if id(view.weight) in selected]
            views += [(".".join(filter(None, (name, view.part))) or ROOT, module, view) for view in chosen]
    protection.weights = _group(views, names, protection, bias, selection)
    _settle_others(model, modules, names, selection, unsupported, protection)
    if not protection.weights:
        raise UnsupportedError(
            "There is nothing to protect: protect/exclude select no trainable layer of this model that has a rule."
        )
    return protection


def _group(
    views: list[NamedView], names: dict[int, str], protection: Protection, bias: str, selection: Selection
) -> list[ProtectedWeight]:
    """Makes one ProtectedWeight per weight and way of seeing it: modules that share a weight share its memory."""
    groups: dict[tuple[int, int, int, bool], list[NamedView]] = {}
    bias_users: dict[tuple[int, tuple[int, int] | None], set[int]] = {}
    for entry in views:
        view = entry[2]
        groups.setdefault((id(view.weight), view.groups, view.output_dim, view.one_hot), []).append(entry)
        bias_users.setdefault((id(view.bias), view.bias_part), set()).add(id(view.weight))
    sides: dict[int, list[LayerView]] = {}
    for (_, _, view), *_ in groups.values():
        sides.setdefault(id(view.weight), []).append(view)

    def is_input_of_one(view: LayerView) -> bool:
        """Whether the bias is protected with the weight, as the weight of an input of 1. Notes frozen and free biases."""
        if view.bias is None or id(view.bias) not in names or not view.bias.requires_grad:
            return False
        name, two_sided = names[id(view.bias)], len(sides[id(view.weight)]) > 1
        if name not in selection or bias == "free":
            protection.free[name] = view.bias
        elif bias == "freeze" or two_sided:  # a weight seen from two sides cannot share either constraint with a bias
            protection.frozen[name] = view.bias
        else:
            return len(bias_users[id(view.bias), view.bias_part]) == 1
        return False

    weights = []
    for members in groups.values():
        name, _, first = members[0]
        both = sides[id(first.weight)]
        if len(both) > 2 or (len(both) == 2 and both[0].input_dims & both[1].input_dims):
            continue  # two constraints that would undo each other: `unsupported` decides
        biases: dict[tuple[int, tuple[int, int] | None], Bias] = {}
        sites = []
        for _, module, view in members:
            column = None
            if view.bias is not None and is_input_of_one(view):
                biases.setdefault((id(view.bias), view.bias_part), Bias(view.bias, view.bias_part))
                column = list(biases).index((id(view.bias), view.bias_part))
            sites.append(Site(module, view, column))
        weights.append(ProtectedWeight(name, first, sites, list(biases.values())))
    twice = [name for name, count in Counter(weight.name for weight in weights).items() if count > 1]
    if twice:
        raise ValueError(
            f"Two weights are called {twice[0]!r}. A rule that returns several views of a layer must name each: "
            'LayerView(…, part="gate").'
        )
    return weights


def _settle_others(
    model: nn.Module,
    modules: dict[str, nn.Module],
    names: dict[int, str],
    selection: Selection,
    unsupported: str,
    protection: Protection,
) -> None:
    """Freezes, frees or refuses the parameters that no rule covers, and frees those that are not selected."""
    settled = {id(p) for p in [*protection.parameters, *protection.free.values()]}
    for name, module in modules.items():
        for own_name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{name}.{own_name}" if name else own_name
            if id(parameter) not in settled and parameter.requires_grad and full in selection:
                settled.add(id(parameter))
                if unsupported == "error":
                    raise UnsupportedError(_why_unsupported(full, module))
                (protection.frozen if unsupported == "freeze" else protection.free)[full] = parameter
    for parameter in model.parameters():
        if id(parameter) not in settled and parameter.requires_grad:
            protection.free[names[id(parameter)]] = parameter


def _why_unsupported(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    reason, remedy = "no rule covers it", f"exclude it by name, or register_layer({kind}, rule)"
    if has_rule(module):
        reason = (
            "the layer's weight is not a plain trainable parameter (it is parametrized, renormalised or fixed, or shared "
            "by layers that see it in ways that exclude each other)"
        )
        remedy = "or exclude it by name"
    return (
        f"GPM cannot protect {name!r} (in a {kind}): {reason}, and left free it would forget. "
        f'Pass unsupported="freeze" to hold it fixed after the first task, unsupported="free" to accept that, {remedy}.'
    )
