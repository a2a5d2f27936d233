"""Reads a model: which weights can be protected, which parameters must be frozen, which parameters no rule covers."""

from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, cast

from torch import Size, Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim.swa_utils import AveragedModel

from remnant.errors import UserError

from ..layers import LayerView, is_norm, rule_of, views_of
from ..subspaces.threshold import check_matches
from .distributed import is_sharded, reshard, world
from .lora import Adapter, adapters_of
from .own_parts import PART, OwnPart, add_own_parts, can_have_part
from .protected import Bias, ProtectedWeight, Site
from .sharded import ShardedWeight

ROOT = "model"  # the name of a model that is itself a layer
UNUSABLE: dict[str, Callable[[Tensor], bool]] = {
    "has no shape yet (a lazy layer): run one batch through the model": lambda p: isinstance(p, UninitializedParameter),
    "is sharded twice (FSDP with tensor parallelism): use one of them": lambda p: (
        is_sharded(p) and sum(not placement.is_replicate() for placement in cast(Any, p).placements) > 1
    ),
    "is sharded over only some of the processes: use a mesh of all of them": lambda p: (
        is_sharded(p) and cast(Any, p).device_mesh.size() != world()[1]
    ),
    "is on the meta device: load its values first": lambda p: p.is_meta,
    "is complex, and products with complex rows are not supported: exclude it": lambda p: p.is_complex(),
    "has size zero: exclude it, or leave the layer out": lambda p: not p.numel(),
}
NamedView = tuple[str, nn.Module, LayerView]


class UnsupportedError(UserError, ValueError):
    """The model has parameters that no rule covers."""


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the model inside the wrappers of torch.compile, DistributedDataParallel and averages."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel | AveragedModel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def clean(name: str) -> str:
    """Returns a name as the user wrote it, without torch.compile's wrapper."""
    return ".".join(piece for piece in name.split(".") if piece != "_orig_mod")


class Protection:
    """Decides what happens to each trainable parameter of a model: it is protected, frozen after the first task, or free."""

    def __init__(
        self,
        model: nn.Module,
        protect: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        *,
        bias: str = "augment",
        norm: str = "free",
        unsupported: str = "free",
        ordered: bool = False,
        lora: str | None = None,
        sketch: int | None = None,
        own_rank: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"GPM takes a torch.nn.Module, not {model!r}.")
        for option, patterns in (("protect", protect), ("exclude", exclude)):
            if isinstance(patterns, str):
                raise TypeError(f'{option} takes a list of patterns: write {option}=["{patterns}"].')
        self.protect, self.exclude = None if protect is None else list(protect), list(exclude)
        self.model, self.unsupported, self._bias = unwrap(model), unsupported, bias
        if any("_fsdp_wrapped_module" in name.split(".") for name, _ in self.model.named_modules()):
            raise UnsupportedError(
                "FullyShardedDataParallel flattens weights, so their rows cannot be protected. Shard the model with "
                "torch.distributed.fsdp.fully_shard instead."
            )
        self._recording: dict[str, Any] = {"ordered": ordered, "sketch": sketch}
        self._own_rank = own_rank
        by_fsdp = reshard(self.model)
        self.sharded = any(is_sharded(parameter) for parameter in self.model.parameters())
        self.parallel = self.sharded and not by_fsdp  # tensor parallelism
        self.weights: list[ProtectedWeight] = []
        self.frozen: dict[str, Tensor] = {}
        self.norms: dict[str, nn.Module] = {}  # their running statistics are frozen, too
        self.free: dict[str, Tensor] = {}
        has_shape = (p for p in self.model.parameters() if not isinstance(p, UninitializedParameter))
        self.shapes: dict[Tensor, Size] = {parameter: parameter.shape for parameter in has_shape}
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in self.named_parameters().items()}
        self._modules = {clean(name): module for name, module in self.model.named_modules()}
        self._check_names()
        self.adapters = self._find_adapters() if lora else []
        self._unreached = {adapter.up: None for adapter in self.adapters}  # B gets nothing of the inputs in the memory
        self._group(self._find_views(norm))
        self._settle_others()
        if self.sharded:
            self._check_shards(recall=ordered, lora=lora)
        if not self.weights:
            reason = "protect/exclude leave" if self.exclude or self.protect is not None else "the model has"
            raise UnsupportedError(f"There is nothing to protect: {reason} no trainable layer with a rule.")
        self.own_parts: list[OwnPart] = []
        self._part_hooks: dict[nn.Module, Any] = {}
        self._synchronised = any(isinstance(module, DistributedDataParallel) for module in model.modules())

    def selects(self, name: str) -> bool:
        """Whether the patterns select a name. A pattern covers everything below a name, too; own parts are never protected."""
        if self._own_rank and PART in name.split("."):
            return False
        lineage = list(accumulate(name.split("."), "{}.{}".format))
        chosen, excluded = (
            any(ancestor == pattern or fnmatchcase(ancestor, pattern) for ancestor in lineage for pattern in patterns)
            for patterns in (self.protect or [], self.exclude)
        )
        return (self.protect is None or chosen) and not excluded

    def named_parameters(self) -> dict[str, Tensor]:
        """The model's parameters of today by name."""
        return {clean(name): parameter for name, parameter in self.model.named_parameters()}

    def _check_names(self) -> None:
        named = [self.model.named_parameters(remove_duplicate=False), self.model.named_buffers(remove_duplicate=False)]
        known = [*filter(None, self._modules), *(clean(name) for tensors in named for name, _ in tensors)]
        for pattern in [*(self.protect or []), *self.exclude]:
            check_matches(pattern, known, f"The pattern {pattern!r} matches nothing in the model.")
        chosen = {name: p for p, name in self._names.items() if p.requires_grad and self.selects(name)}
        reasons = {name: next((why for why, is_so in UNUSABLE.items() if is_so(p)), "") for name, p in chosen.items()}
        if unusable := [f"{name!r} {reason}" for name, reason in reasons.items() if reason]:
            raise UnsupportedError(f"GPM cannot protect this model. {'; '.join(unusable)}.")

    def add_own_parts(self, rank: int) -> None:
        """Gives each linear layer and convolution a part of the task's own."""
        layers = {site.module: weight.name for weight in self.weights for site in weight.sites}
        if self._synchronised and any(can_have_part(layer) and PART not in layer._modules for layer in layers):
            raise UnsupportedError(
                "own_rank adds parameters, which DistributedDataParallel would not know. Make the memory first and wrap "
                "the model after that."
            )
        self.own_parts, self._part_hooks = add_own_parts(layers, rank)
        own = {parameter for part in self.own_parts for parameter in part.parameters()}
        self.free.update({name: p for name, p in self.named_parameters().items() if p in own})

    def remove_new_parts(self) -> None:
        """Takes back what `add_own_parts` has added."""
        for layer, hook in self._part_hooks.items():
            hook.remove()
            del layer._modules[PART]

    def _check_shards(self, *, recall: bool, lora: str | None) -> None:
        if recall or lora:
            raise UnsupportedError('recall=True and lora="inputs" need whole weights, and this model\'s are sharded.')
        parts = [weight for weight in self.weights if weight.sharded and self.parallel]
        if split := [weight for weight in parts if weight.splits_inputs or weight.view.outputs % world()[1]]:
            names = ", ".join(repr(weight.name) for weight in split)
            raise UnsupportedError(
                f"GPM cannot protect {names}: tensor parallelism splits the layer's inputs (RowwiseParallel) or its groups, "
                "or unevenly, so no process has whole rows. Use ColwiseParallel, which splits its outputs, or exclude it."
            )

    def _find_adapters(self) -> list[Adapter]:
        adapters, refused = adapters_of(self.model, lambda name: self.selects(clean(name)))
        if refused:
            raise UnsupportedError(
                f"GPM cannot protect these adapters: {'; '.join(refused)}. Leave them out of the LoraConfig."
            )
        if not adapters:
            raise UnsupportedError('lora="inputs" needs a peft model with trainable LoRA adapters: get_peft_model(…).')
        return adapters

    def _find_views(self, norm: str) -> list[NamedView]:
        """Returns the selected views of all layers, and freezes or frees normalisation layers, which have none."""
        views: list[NamedView] = []
        for name, module in self._modules.items():
            # Two modules may share a weight, and a pattern may select it under one of its names only.
            own = module.named_parameters(prefix=name, recurse=rule_of(module) is not None, remove_duplicate=False)
            trained = {p: n for n, p in own if p.requires_grad and p not in self._unreached}
            selected = {p: n for p, n in trained.items() if self.selects(clean(n))}
            if is_norm(module) and rule_of(module) is None:
                if norm == "freeze" and (selected or not name or self.selects(name)):
                    self.norms[name or ROOT] = module
                fate = self.frozen if norm == "freeze" else self.free
                fate.update({self._names[p]: p for p in selected})
            else:
                # A weight that is computed from others (a parametrization) is not a parameter, and so not selected.
                chosen = [view for view in (views_of(module) or [] if selected else []) if view.weight in selected]
                views += [(".".join(filter(None, (name, view.part))) or ROOT, module, view) for view in chosen]
        return views

    def _group(self, views: list[NamedView]) -> None:
        """Makes one ProtectedWeight for all modules that share a weight and view it in the same way.

        A two-sided weight gets two. It is the weight of an embedding and also of an output layer: its rows are the inputs of
        one and its columns those of the other, so both constraints can hold at once.
        """
        groups: dict[tuple[Tensor, int, int, bool], list[NamedView]] = {}
        for entry in views:
            view = entry[2]
            groups.setdefault((view.weight, view.groups, view.output_dim, view.one_hot), []).append(entry)
        sides: dict[Tensor, list[LayerView]] = {}
        for (_, _, view), *_ in groups.values():
            sides.setdefault(view.weight, []).append(view)
        pairs = {(Bias(view.bias, view.bias_slice), view.weight) for _, _, view in views if view.bias is not None}
        users = Counter(bias for bias, _ in pairs)
        for members in groups.values():
            name, _, first = members[0]
            both = sides[first.weight]
            disjoint = first.weight.ndim == 2 and {view.output_dim for view in both} == {0, 1}
            if len(both) > 2 or (len(both) == 2 and not disjoint):
                continue  # two constraints on the same inputs would undo each other: `unsupported` decides
            columns: dict[Bias, int] = {}
            sites = []
            for _, module, view in members:
                own = Bias(view.bias, view.bias_slice) if view.bias is not None else None
                column = None
                if own is not None and self._is_protected(own, two_sided=len(both) == 2) and users[own] == 1:
                    column = columns.setdefault(own, len(columns))
                sites.append(Site(module, view, column))
            any_sharded = self.sharded and any(map(is_sharded, [first.weight, *(bias.parameter for bias in columns)]))
            kind = ShardedWeight if any_sharded else ProtectedWeight
            self.weights.append(kind(name, first, sites, list(columns), **self._recording))
        counts = Counter(weight.name for weight in self.weights)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(
                f"Two weights are called {twice[0]!r}. A rule that returns several views of a layer must name each: "
                'LayerView(…, part="gate").'
            )

    def _is_protected(self, bias: Bias, *, two_sided: bool) -> bool:
        """Whether a bias is protected with its weight, as the weight of an input of 1; otherwise it is frozen or free."""
        name = self._names.get(bias.parameter)
        if name is None or not bias.parameter.requires_grad:
            return False
        if not self.selects(name) or self._bias == "free":
            self.free[name] = bias.parameter
        elif self._bias == "freeze" or two_sided:
            # A two-sided weight cannot share either constraint with a bias.
            self.frozen[name] = bias.parameter
        else:
            return True
        return False

    def _settle_others(self) -> None:
        """Freezes, frees or refuses the parameters that no rule covers, and frees those that are not selected."""
        protected = [parameter for weight in self.weights for parameter in weight.parameters]
        settled = {*protected, *self._unreached, *self.frozen.values(), *self.free.values()}
        uncovered: dict[str, list[str]] = {}
        for name, module in self._modules.items():
            for full, parameter in module.named_parameters(prefix=name, recurse=False, remove_duplicate=False):
                if parameter not in settled and parameter.requires_grad and self.selects(full):
                    settled.add(parameter)
                    uncovered.setdefault(name, []).append(full)
                    (self.frozen if self.unsupported == "freeze" else self.free)[full] = parameter
        if uncovered and self.unsupported == "error":
            raise UnsupportedError(_why_unsupported({self._modules[name]: found for name, found in uncovered.items()}))
        self.free.update({name: p for p, name in self._names.items() if p not in settled and p.requires_grad})
        self.parameters = [*protected, *self.frozen.values(), *self._unreached]


def _why_unsupported(uncovered: dict[nn.Module, list[str]]) -> str:
    found, kinds = [], []
    for module, names in uncovered.items():
        has_rule, is_layer = rule_of(module) is not None, not any(module.children())
        kinds += [type(module).__name__] if is_layer and not has_rule else []  # bare parameters of a model need no rule
        reason = _why_missed(module, names) if has_rule else "no rule covers it"
        found.append(f"{', '.join(map(repr, names))} (in {type(module).__name__}: {reason})")
    every = ", ".join(f'"{name}"' for names in uncovered.values() for name in names)
    rule = f" A rule protects them: register_layer({kinds[0]}, rule)." if kinds else ""
    return (
        f"GPM cannot protect these parameters, and left free they would forget: {'; '.join(found)}. Pass "
        'unsupported="freeze" to hold them fixed after the first task, unsupported="free" to accept that, or '
        f"exclude=[{every}].{rule}"
    )


def _why_missed(module: nn.Module, names: list[str]) -> str:
    """Why parameters of a module that has a rule are not protected."""
    seen = {tensor for view in views_of(module) or [] for tensor in (view.weight, view.bias)} - {None}
    missed = {module.get_parameter(name.rpartition(".")[2]) for name in names}
    if seen and seen <= set(module.parameters()) and seen.isdisjoint(missed):
        return f"the rule of {type(module).__name__} returns no view of {'them' if len(names) > 1 else 'it'}"
    return (
        "the layer's weight is not a plain trainable parameter (it is parametrized, renormalised or fixed, or shared by "
        "layers that see it in ways that exclude each other)"
    )
