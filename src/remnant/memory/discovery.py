"""Reads a model: which weights can be protected, which parameters must hold still, which nothing covers."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from .errors import UnsupportedError
from .layers.registry import LayerView, has_rule, is_norm, views_of
from .protected import Bias, ProtectedWeight, Site

ROOT = "model"  # the name of a model that is itself a layer


@dataclass
class Protection:
    """What GPM does with each trainable parameter of a model."""

    weights: list[ProtectedWeight] = field(default_factory=list)
    frozen: dict[str, Tensor] = field(default_factory=dict)  # hold still from the second task on
    norms: dict[str, nn.Module] = field(default_factory=dict)  # whose running statistics hold still too
    free: dict[str, Tensor] = field(default_factory=dict)


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself, out of torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


class Selection:
    """Which names a user's `protect` and `exclude` patterns mean."""

    def __init__(self, protect: Iterable[str] | None, exclude: Iterable[str]) -> None:
        for name, patterns in (("protect", protect), ("exclude", exclude)):
            if isinstance(patterns, str):
                raise TypeError(f'{name} takes a list of patterns: write {name}=["{patterns}"].')
        self.protect = None if protect is None else list(protect)
        self.exclude = list(exclude)

    def check(self, names: list[str]) -> None:
        """A pattern that matches nothing is a typo, and a typo would leave something open or closed."""
        for pattern in [*(self.protect or []), *self.exclude]:
            if not any(fnmatchcase(name, pattern) for name in names):
                near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.4)
                hint = f" Did you mean {near[0]!r}?" if near else f" Its top-level names: {_top(names)}."
                raise ValueError(f"The pattern {pattern!r} matches nothing in the model.{hint}")

    def __contains__(self, name: str) -> bool:
        return (self.protect is None or _covered(name, self.protect)) and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        return _covered(name, self.exclude)


def _covered(name: str, patterns: list[str]) -> bool:
    """A pattern covers what it matches and all that is below."""
    pieces = name.split(".")
    lineage = [".".join(pieces[: depth + 1]) for depth in range(len(pieces))]
    return any(fnmatchcase(ancestor, pattern) for ancestor in lineage for pattern in patterns)


def discover(model: nn.Module, selection: Selection, *, bias: str, norm: str, unsupported: str) -> Protection:
    plan = Protection()
    names = {id(p): clean(name) for name, p in model.named_parameters()}
    modules = {clean(name): module for name, module in model.named_modules()}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    selection.check([*filter(None, modules), *(clean(name) for name, _ in tensors)])
    lazy = [names[id(p)] for p in model.parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise UnsupportedError(f"{lazy[0]!r} has no shape yet (a lazy layer). Run one batch through the model first.")

    found: list[tuple[str, nn.Module, LayerView]] = []
    settled: set[int] = set()
    for name, module in modules.items():
        # The module's own names count: of two modules that share a weight, a pattern may mean one.
        own = module.named_parameters(recurse=views_of(module) is not None, remove_duplicate=False)
        selected = {id(p): p for n, p in own if p.requires_grad and clean(f"{name}.{n}" if name else n) in selection}
        if is_norm(module) and not has_rule(module):
            if norm == "freeze" and (selected or not name or name in selection):
                plan.norms[name or ROOT] = module
            settled.update(selected)
            (plan.frozen if norm == "freeze" else plan.free).update({names[key]: p for key, p in selected.items()})
        else:
            # A weight computed from others (a parametrization) is no parameter: its parts are looked at instead.
            views = [view for view in views_of(module) or [] if id(view.weight) in selected]
            found += [(".".join(filter(None, (name, view.part))) or ROOT, module, view) for view in views]
    plan.weights = _group(found, names, plan, bias, selection)
    _check_names(plan.weights)
    for weight in plan.weights:
        settled.update(id(parameter) for parameter in weight.parameters)
    settled.update(id(p) for p in [*plan.frozen.values(), *plan.free.values()])

    for name, module in modules.items():
        for own_name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{name}.{own_name}" if name else own_name
            if id(parameter) in settled or not parameter.requires_grad:
                continue
            if full in selection:
                _uncovered(full, module, parameter, unsupported, plan)
                settled.add(id(parameter))
    for parameter in model.parameters():
        if id(parameter) not in settled and parameter.requires_grad:
            plan.free[names[id(parameter)]] = parameter
    if not plan.weights:
        raise UnsupportedError(
            "Nothing to protect: no trainable layer of this model has a rule and is selected by protect/exclude."
        )
    return plan


def _group(
    found: list[tuple[str, nn.Module, LayerView]],
    names: dict[int, str],
    plan: Protection,
    bias: str,
    selection: Selection,
) -> list[ProtectedWeight]:
    """One ProtectedWeight per weight and way of seeing it: modules that share a weight share its memory."""
    groups: dict[tuple[int, int, int, bool], list[tuple[str, nn.Module, LayerView]]] = {}
    for entry in found:
        view = entry[2]
        groups.setdefault((id(view.weight), view.groups, view.output_dim, view.one_hot), []).append(entry)
    ways: dict[int, list[LayerView]] = {}
    users: dict[tuple[int, tuple[int, int] | None], set[int]] = {}  # which weights a bias serves
    for members in groups.values():
        view = members[0][2]
        ways.setdefault(id(view.weight), []).append(view)
        for _, _, member in members:
            if member.bias is not None:
                users.setdefault((id(member.bias), member.bias_part), set()).add(id(view.weight))

    weights = []
    for members in groups.values():
        view = members[0][2]
        seen_from = ways[id(view.weight)]
        if len(seen_from) > 1 and (len(seen_from) > 2 or seen_from[0].input_dims & seen_from[1].input_dims):
            continue  # the two constraints would undo each other; left to `unsupported`
        sites: list[Site] = []
        biases: list[Bias] = []
        for _, module, member in members:
            place: int | None = None
            if member.bias is not None and id(member.bias) in names and member.bias.requires_grad:
                full = names[id(member.bias)]
                alone = len(users[id(member.bias), member.bias_part]) == 1 and len(seen_from) == 1
                if full not in selection or bias == "free":
                    plan.free[full] = member.bias
                elif bias == "freeze" or (not alone and len(seen_from) > 1):
                    # A weight seen from two sides cannot share either constraint with a bias.
                    plan.frozen[full] = member.bias
                elif alone:
                    known = [b.parameter is member.bias and b.part == member.bias_part for b in biases]
                    place = known.index(True) if True in known else len(biases)
                    biases += [] if True in known else [Bias(member.bias, member.bias_part)]
            sites.append(Site(module, member, place))
        weights.append(ProtectedWeight(members[0][0], view, sites, biases))
    return weights


def _check_names(weights: list[ProtectedWeight]) -> None:
    counts = Counter(weight.name for weight in weights)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"Two weights are called {twice[0]!r}. A rule that gives several views of a layer must name each: "
            'LayerView(…, part="gate").'
        )


def _uncovered(name: str, module: nn.Module, parameter: Tensor, unsupported: str, plan: Protection) -> None:
    if unsupported == "freeze":
        plan.frozen[name] = parameter
    elif unsupported == "free":
        plan.free[name] = parameter
    else:
        kind = type(module).__name__
        reason, remedy = "no rule covers it", f"exclude it by name, or register_layer({kind}, rule)"
        if has_rule(module):
            reason = (
                "the layer's weight is not a plain trainable parameter (parametrized, renormalised, fixed, or shared by "
                "layers that see it in ways that exclude each other)"
            )
            remedy = "or exclude it by name"
        raise UnsupportedError(
            f"GPM cannot protect {name!r} (in a {kind}): {reason}, and left free it would forget. "
            f'Pass unsupported="freeze" to hold it fixed after the first task, unsupported="free" to accept that, {remedy}.'
        )


def clean(name: str) -> str:
    """Names as the user wrote them, without torch.compile's wrapper."""
    return ".".join(piece for piece in name.split(".") if piece != "_orig_mod")


def _top(names: list[str]) -> str:
    return ", ".join(sorted({name.split(".")[0] for name in names}))
