"""What each method keeps from task to task, against the largest memory GPM could need (the paper's memory figure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from remnant.experiments.runs.paths import folder_name

from ..capacity import gpm_max_bytes
from ..names import benchmark_title, ordered_methods
from ..variants import Collection
from .bars import bars
from .drawing import Drawing
from .labels import footnote, label

# The shares the paper's text gives for GPM (Sec. 7): the complement is not counted there, bases always are.
PAPER = {"pmnist": 0.69, "split-cifar100": 0.55, "split-miniimagenet": 0.76, "five-datasets": 0.78}


def memory(collection: Collection, benchmark: str) -> Drawing | None:
    found = {variant.method: variant for variant in collection.mains(benchmark)}
    rows = []
    for method in ordered_methods(found):
        whole = gpm_max_bytes(found[method])
        kept = found[method].memory_bytes.mean
        if whole and kept is not None:
            rows.append({"method": method, "title": label(found[method]), "value": kept / whole, "bytes": kept})
    if not rows or not any(row["value"] for row in rows):
        return None
    words = ", ".join(f"{row['title']} {row['value']:.2f}" for row in rows)
    paper = f" The paper's GPM: {PAPER[benchmark]:.2f}." if benchmark in PAPER else ""
    return Drawing(
        f"memory-{folder_name(benchmark)}",
        f"{benchmark_title(benchmark)}: memory, GPM_max = 1",
        f"Memory kept between tasks relative to GPM_max on {benchmark_title(benchmark)}: {words}.{paper}",
        {"rows": rows, "paper": PAPER.get(benchmark)},
        draw,
        footnote(found.values()),
    )


def draw(data: Mapping[str, Any]) -> Figure:
    return bars(data["rows"], "memory relative to GPM_max", reference=1.0, paper={"gpm": data["paper"]})
