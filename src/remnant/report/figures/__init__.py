"""Every figure of the report, in sections."""

from collections.abc import Sequence

from ..names import in_order
from ..variants import Collection
from .comparison import comparison_drawing
from .drawing import COLOURS, INK, Drawing, digest_of
from .methods import epoch_times, families, first_task, look_number, memory, trade_off
from .ranks import rank_growth
from .sweep import sweep_drawings

__all__ = ["COLOURS", "INK", "Drawing", "comparison_drawing", "digest_of", "look_number", "make_sections"]


def make_sections(collection: Collection) -> dict[str, list[Drawing]]:
    """All figures that compare methods or thresholds, by the section of the page that shows them."""
    benchmarks = collection.benchmarks
    timed = in_order("benchmarks", {*benchmarks, *collection.reading.times})
    found: dict[str, Sequence[Drawing | None]] = {
        "first-task": [first_task(*family) for benchmark in benchmarks for family in families(collection, benchmark)],
        "trade-off": [trade_off(*family) for benchmark in benchmarks for family in families(collection, benchmark)],
        "ranks": [rank_growth(main) for benchmark in benchmarks for main in collection.mains(benchmark).values()],
        "memory": [memory(collection, benchmark) for benchmark in benchmarks],
        "epoch-time": [drawing for benchmark in timed for drawing in epoch_times(collection, benchmark)],
        "interference": sweep_drawings(collection),
    }
    return {name: [drawing for drawing in drawings if drawing] for name, drawings in found.items()}
