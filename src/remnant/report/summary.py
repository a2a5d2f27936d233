"""Benchmark by benchmark: who wins, by how much, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from remnant.experiments.paper.tables import Figure
from remnant.experiments.settings.resolve import SettingsError, recipe

from .grid import Number
from .names import BOUNDS, benchmark_title, method_title, ordered_benchmarks
from .spread import Spread, welch
from .variants import Collection, Variant
from .verdict import BETTER, CANNOT_SAY, WITHIN, WORSE, verdict

AGREEMENT = {
    WITHIN: "ours is within the spread",
    BETTER: "ours is better",
    WORSE: "ours is worse",
    CANNOT_SAY: "one seed: cannot say whether ours agrees",
}


@dataclass(frozen=True)
class Card:
    """Sentences, ready to print. Empty where there is nothing to say."""

    benchmark: str
    title: str
    winner: str
    method: str  # as the matrix links it; empty where nothing was run
    acc: str
    seeds: str
    margin: str
    sure: str
    paper: str
    bound: str


def summarise(collection: Collection) -> list[Card]:
    return [_card(collection, benchmark) for benchmark in ordered_benchmarks(collection.benchmarks)]


def _card(collection: Collection, benchmark: str) -> Card:
    mains = collection.mains(benchmark)
    rivals = sorted((v for v in mains if v.method not in BOUNDS), key=lambda v: -(v.acc.mean or 0.0))
    if not rivals:
        unfinished = sum(len(v.unfinished) for v in collection.of(benchmark))
        why = f"No finished run yet ({unfinished} unfinished)." if unfinished else "Only bounds were run, no contender."
        return Card(benchmark, benchmark_title(benchmark), "", "", "", "", why, "", "", _bound(mains))
    best = rivals[0]
    margin, sure = _lead(best, rivals[1] if len(rivals) > 1 else None)
    return Card(
        benchmark,
        benchmark_title(benchmark),
        method_title(best.method),
        best.method,
        _percent(best.acc),
        f"{best.acc.n} seeds" if best.acc.n > 1 else "one seed",
        margin,
        sure,
        _against_paper(best),
        _bound(mains),
    )


def _lead(best: Variant, second: Variant | None) -> tuple[str, str]:
    if second is None:
        return (
            "The only method run: nothing to compare it with.",
            "" if best.acc.n > 1 else "One seed: cannot say how sure.",
        )
    lead = (best.acc.mean or 0.0) - (second.acc.mean or 0.0)
    how = "" if second.as_in_recipe else f", with {second.label}"
    margin = f"{lead:.2f} points ahead of {method_title(second.method)} ({_percent(second.acc)}{how})."
    interval = welch(best.acc, second.acc)
    if interval is None:
        return margin, "One seed: cannot say how sure."
    low, high = (Number(bound, None, 2).text for bound in (interval.low, interval.high))
    verdict = "Settled" if interval.settled else "Not settled"
    return margin, f"{verdict}: the 95 % interval of the difference is {low} to {high} points (Welch)."


def _against_paper(variant: Variant) -> str:
    """The paper's figure is for the recipe's settings: beside others it would mislead."""
    if not variant.as_in_recipe:
        return f"With {variant.label}."
    try:
        paper = recipe(variant.benchmark).paper.get(variant.method)
    except SettingsError:
        paper = None
    if paper is None or paper.acc is None:
        return ""
    theirs = Figure(paper.acc, paper.acc_sd)
    return f"Paper: {Number(paper.acc, paper.acc_sd).text} %; {AGREEMENT[verdict('acc', variant.acc, theirs)]}."


def _bound(mains: list[Variant]) -> str:
    bounds = [v for v in mains if v.method in BOUNDS]
    return "; ".join(f"{method_title(v.method)}: {_percent(v.acc)}" for v in bounds)


def _percent(spread: Spread) -> str:
    return f"{Number(spread.mean or 0.0, spread.sd).text} %"
