"""What a memory does with each parameter of its model."""

from __future__ import annotations

from remnant import GPM


def fates(memory: GPM) -> dict[str, str]:
    """Parameter name → protected, frozen or free."""
    plan = memory._protection
    names = {id(p): name for name, p in memory._model.named_parameters()}
    protected = {names[id(p)]: "protected" for weight in plan.weights for p in weight.parameters}
    frozen = {names[id(p)]: "frozen" for p in plan.frozen.values()}
    free = {names[id(p)]: "free" for p in plan.free.values()}
    everything = protected | frozen | free
    assert len(everything) == len(protected) + len(frozen) + len(free), "one parameter, one fate"
    return everything
