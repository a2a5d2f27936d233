"""A few sentences on each benchmark, at the top of docs/results.md: the best method, by how much, and how certain that is."""

from remnant.evaluation import Spread
from remnant.experiments.settings import recipe

from .grid import Number
from .names import BOUNDS, TEXTS, method_title
from .statistics import verdict, welch
from .variants import Collection, Variant

ONE_SEED = "One seed: cannot say how sure."


def make_card(collection: Collection, benchmark: str) -> list[str]:
    """The sentences on the best method of a benchmark, and on the bounds that were run."""
    mains = collection.mains(benchmark)
    bounds = "; ".join(f"{method_title(m)}: {_percent(v.acc)}" for m, v in mains.items() if m in BOUNDS)
    ranking = sorted((v for m, v in mains.items() if m not in BOUNDS), key=lambda v: -(v.acc.mean or 0.0))
    if ranking:
        best, *others = ranking
        seeds = f"{len(best.runs)} seeds" if len(best.runs) > 1 else "one seed"
        sentences = [f"{method_title(best.method)}, {_percent(best.acc)} ({seeds})."]
        sentences += _lead(best, others[0] if others else None) + _against_paper(best)
    elif unfinished := sum(len(v.unfinished) for v in collection.of(benchmark)):
        sentences = [f"No finished run yet ({unfinished} unfinished)."]
    else:
        sentences = ["Only bounds were run, no contender."]
    return [*sentences, f"{bounds}."] if bounds else sentences


def _lead(best: Variant, second: Variant | None) -> list[str]:
    """How far the best is ahead of the second, and whether that is certain."""
    if second is None:
        return ["The only method run: nothing to compare it with."] + [ONE_SEED] * (best.acc.n < 2)
    lead = (best.acc.mean or 0.0) - (second.acc.mean or 0.0)
    how = "" if second.as_in_recipe else f", with {second.label}"
    margin = f"{lead:.2f} points ahead of {method_title(second.method)} ({_percent(second.acc)}{how})."
    interval = welch(best.acc, second.acc)
    if interval is None:
        return [margin, ONE_SEED]
    low, high = (Number(Spread(bound)) for bound in interval)
    word = "Settled" if interval[0] > 0 or interval[1] < 0 else "Not settled"
    return [margin, f"{word}: the 95 % interval of the difference is {low} to {high} points (Welch)."]


def _against_paper(variant: Variant) -> list[str]:
    """The paper's result, which is for the recipe's settings and would mislead beside other settings."""
    if not variant.as_in_recipe:
        return [f"With {variant.label}."]
    paper = recipe(variant.benchmark).paper.get(variant.method)
    if paper is None or paper.acc is None:
        return []
    theirs = Spread(paper.acc, paper.acc_sd)
    return [f"Paper: {_percent(theirs)}; {TEXTS['verdicts'][verdict('acc', variant.acc, theirs)]}."]


def _percent(spread: Spread) -> str:
    return f"{Number(spread)} %"
