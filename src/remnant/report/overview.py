"""The top of the page: a card for each benchmark, and the matrix of methods and benchmarks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from remnant.evaluation import Spread
from remnant.experiments.settings import recipe

from .grid import NO_VALUE, NOT_RUN, Number
from .names import BOUNDS, benchmark_title, expected_methods, has_recipe, method_title, sort_benchmarks, sort_methods
from .statistics import BETTER, CANNOT_SAY, WITHIN, WORSE, verdict, welch
from .variants import Collection, Variant

AGREEMENT = {
    WITHIN: "ours is within the spread",
    BETTER: "ours is better",
    WORSE: "ours is worse",
    CANNOT_SAY: "one seed: cannot say whether ours agrees",
}
ONE_SEED = "One seed: cannot say how sure."


class Card(NamedTuple):
    """Sentences about the best method on a benchmark. Fields are empty where there is nothing to say."""

    title: str
    winner: str = ""
    acc: str = ""
    seeds: str = ""
    margin: str = ""
    certainty: str = ""
    paper: str = ""
    bound: str = ""


def make_card(collection: Collection, benchmark: str) -> Card:
    mains = collection.mains(benchmark)
    title = benchmark_title(benchmark)
    bound = "; ".join(f"{method_title(m)}: {_percent(v.acc)}" for m, v in mains.items() if m in BOUNDS)
    ranking = _ranking(mains)
    if not ranking:
        unfinished = sum(len(v.unfinished) for v in collection.of(benchmark))
        why = f"No finished run yet ({unfinished} unfinished)." if unfinished else "Only bounds were run, no contender."
        return Card(title, margin=why, bound=bound)
    best = ranking[0]
    winner = (method_title(best.method), _percent(best.acc), _seeds(best))
    return Card(title, *winner, *_lead(ranking), _against_paper(best), bound)


def _ranking(mains: Mapping[str, Variant]) -> list[Variant]:
    """The methods that compete, the best first."""
    return sorted((v for m, v in mains.items() if m not in BOUNDS), key=lambda v: -(v.acc.mean or 0.0))


def _lead(ranking: Sequence[Variant]) -> tuple[str, str]:
    """How far the best is ahead of the second, and whether that is certain."""
    best, *others = ranking
    if not others:
        return "The only method run: nothing to compare it with.", "" if best.acc.n > 1 else ONE_SEED
    second = others[0]
    lead = (best.acc.mean or 0.0) - (second.acc.mean or 0.0)
    how = "" if second.as_in_recipe else f", with {second.label}"
    margin = f"{lead:.2f} points ahead of {method_title(second.method)} ({_percent(second.acc)}{how})."
    interval = welch(best.acc, second.acc)
    if interval is None:
        return margin, ONE_SEED
    low, high = (Number(Spread(bound)).text for bound in interval)
    word = "Settled" if interval[0] > 0 or interval[1] < 0 else "Not settled"
    return margin, f"{word}: the 95 % interval of the difference is {low} to {high} points (Welch)."


def _against_paper(variant: Variant) -> str:
    """The paper's figure, which is for the recipe's settings and would mislead beside others."""
    if not variant.as_in_recipe:
        return f"With {variant.label}."
    paper = recipe(variant.benchmark).paper.get(variant.method)
    if paper is None or paper.acc is None:
        return ""
    theirs = Spread(paper.acc, paper.acc_sd)
    return f"Paper: {_percent(theirs)}; {AGREEMENT[verdict('acc', variant.acc, theirs)]}."


def _percent(spread: Spread) -> str:
    return f"{Number(spread).text} %"


def _seeds(variant: Variant) -> str:
    return f"{len(variant.runs)} seeds" if len(variant.runs) > 1 else "one seed"


class MatrixCell(NamedTuple):
    """ACC of a method on a benchmark, or a word that says why there is none."""

    text: str
    kind: str = "run"  # run, unfinished, not-run or none: a class in style.css
    spoken: str = ""  # the whole cell as a sentence, for screen readers
    link: str = ""  # the id of the details it leads to
    note: str = ""
    bwt: str = ""
    best: bool = False


class Matrix(NamedTuple):
    """A column for each benchmark, and a row for each method."""

    titles: list[str]  # of the benchmarks
    rows: list[tuple[str, bool, list[MatrixCell]]]  # the method's title, whether it is a bound, its cells


def make_matrix(collection: Collection) -> Matrix:
    expected = expected_methods()
    benchmarks = sort_benchmarks({*expected, *collection.benchmarks})
    methods = sort_methods({*collection.methods, *(method for each in expected.values() for method in each)})
    cells = {method: [_cell(collection, benchmark, method) for benchmark in benchmarks] for method in methods}
    rows = [(method_title(method), method in BOUNDS, cells[method]) for method in methods]
    return Matrix(list(map(benchmark_title, benchmarks)), rows)


def _cell(collection: Collection, benchmark: str, method: str) -> MatrixCell:
    variant = collection.main(benchmark, method)
    if variant is None:
        if method in expected_methods().get(benchmark, ()) or has_recipe(benchmark, method):
            return MatrixCell(NOT_RUN, "not-run")
        return MatrixCell(NO_VALUE, "none", "not part of any table")
    if not variant.runs:
        tasks = max(variant.unfinished, key=lambda run: run.learned).progress
        return MatrixCell("unfinished", "unfinished", f"{variant.title}: unfinished, {tasks}", variant.anchor, tasks)
    acc = Number(variant.acc).text
    bwt = "" if variant.bwt.mean is None else Number(variant.bwt, 3).text
    others = len(collection.of(benchmark, method)) - 1
    notes = [_seeds(variant)]
    notes += [f"{len(variant.unfinished)} unfinished"] * bool(variant.unfinished)
    notes += [] if variant.as_in_recipe else [variant.label]
    notes += [f"{others} more with other settings"] * bool(others)
    note = ", ".join(notes)
    ranking = _ranking(collection.mains(benchmark))
    best = len(ranking) > 1 and ranking[0] is variant
    spoken = f"{variant.title}: ACC {acc} per cent" + (f", BWT {bwt}" if bwt else "") + f", {note}"
    return MatrixCell(acc, "run", spoken + (", the best here" if best else ""), variant.anchor, note, bwt, best)
