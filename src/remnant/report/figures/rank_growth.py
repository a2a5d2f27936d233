"""How full each layer's memory gets: rank against capacity, over the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remnant.experiments.runs.paths import folder_name

from ..capacity import capacities
from ..names import benchmark_title, method_title
from ..rank_tables import mean_ranks
from ..variants import Variant
from .drawing import Drawing
from .style import INK, canvas, legend_below, look

MOST = 8  # layers that lines can tell apart; of more, the range of all is drawn and the fullest and emptiest are named


def rank_growth(variant: Variant) -> Drawing | None:
    room = capacities(variant)
    ranks = {layer: [k.mean or 0.0 for k in added] for layer, added in mean_ranks(variant).items() if layer in room}
    if not ranks:
        return None
    layers = [
        {"layer": layer, "capacity": room[layer], "share": [100 * k / room[layer] for k in accumulate(added)]}
        for layer, added in ranks.items()
    ]
    ends = ", ".join(f"{each['layer']} {_end(each):.0f} % of {each['capacity']}" for each in layers)
    return Drawing(
        f"ranks-{folder_name(variant.benchmark)}-{folder_name(variant.method)}-{variant.digest}",
        f"{benchmark_title(variant.benchmark)}: how full the memory of {method_title(variant.method)} gets",
        f"Share of each layer's input space in the memory after each task; after the last: {ends}.",
        {"layers": layers},
        draw,
    )


def _end(layer: Mapping[str, Any]) -> float:
    return float(layer["share"][-1]) if layer["share"] else 0.0


def draw(data: Mapping[str, Any]) -> Figure:
    figure, axes = canvas()
    layers = data["layers"]
    shown = layers
    if len(layers) > MOST:
        byend = sorted(layers, key=_end)
        shown = sorted([*byend[:3], *byend[-4:]], key=layers.index)
        columns = list(zip(*(layer["share"] for layer in layers), strict=False))
        at = range(1, len(columns) + 1)
        axes.fill_between(
            at,
            [min(c) for c in columns],
            [max(c) for c in columns],
            color=INK,
            alpha=0.12,
            linewidth=0,
            label=f"all {len(layers)} layers",
        )
    for number, layer in enumerate(shown):
        colour, marker, dash = look(number)
        axes.plot(
            range(1, len(layer["share"]) + 1),
            layer["share"],
            color=colour,
            marker=marker,
            linestyle=dash,
            label=f"{layer['layer']} (n = {layer['capacity']})",
        )
    axes.set_ylim(0, 104)
    axes.axhline(100, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("rank k, % of capacity n")
    legend_below(figure, axes)
    return figure
