"""How full GPM's memory gets, layer by layer."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from ..names import benchmark_title, method_title
from ..variants import Variant
from .drawing import INK, REFERENCE, Drawing, canvas, finish, look

MOST_LAYERS = 8  # that lines can show; with more layers, a band shows all, and lines the fullest and the emptiest


def rank_growth(variant: Variant) -> Drawing | None:
    """The rank of each layer's basis relative to its capacity, after each task."""
    layers: list[dict[str, Any]] = []
    for layer, added in variant.ranks.items():
        if added.size and (capacity := variant.capacities.get(layer)):
            shares = (100 * added.mean(axis=0).cumsum() / capacity).tolist()
            layers.append({"layer": layer, "capacity": capacity, "share": shares})
    if not layers:
        return None
    ends = ", ".join(f"{each['layer']} {each['share'][-1]:.0f} % of {each['capacity']}" for each in layers)
    title = f"{benchmark_title(variant.benchmark)}: how full the memory of {method_title(variant.method)} gets"
    alt = f"Share of each layer's input space in the memory after each task; after the last: {ends}."
    return Drawing(f"ranks-{variant.slug}", title, alt, {"layers": layers}, draw_rank_growth)


def draw_rank_growth(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    layers = shown = data["layers"]
    if len(layers) > MOST_LAYERS:
        ordered = sorted(layers, key=lambda layer: layer["share"][-1])
        shown = sorted([*ordered[:3], *ordered[-4:]], key=layers.index)
        columns = list(zip(*(layer["share"] for layer in layers), strict=False))
        band = {"color": INK, "alpha": 0.12, "linewidth": 0, "label": f"all {len(layers)} layers"}
        axes.fill_between(range(1, len(columns) + 1), list(map(min, columns)), list(map(max, columns)), **band)
    for number, layer in enumerate(shown):
        tasks, label = range(1, len(layer["share"]) + 1), f"{layer['layer']} (n = {layer['capacity']})"
        axes.plot(tasks, layer["share"], **look(number), label=label)
    axes.set_ylim(0, 104)
    axes.axhline(100, color=INK, **REFERENCE)
    return finish(figure, axes, "tasks learnt", "rank k, % of capacity n")
