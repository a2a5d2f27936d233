"""`remnant sweep --search`: rounds of trials, and the best of them."""

from collections.abc import Callable, Sequence

from remnant.errors import RunError
from remnant.evaluation import Spread
from remnant.experiments.execute import Plan, Search, finished_runs

from .app import err, print_rows, print_text
from .progress import run_plans

SHOWN = 10


def run_search(trials: int, over: Sequence[str], plan: Callable[[Sequence[str]], Plan], quiet: bool, log: str) -> None:
    """Runs a search up to `trials` trials. Prints the best ones by validation accuracy, and the best one's test accuracy."""
    search, first = Search(over, plan), plan([])
    title = f"{first.settings.benchmark} · {first.settings.method}"
    for plans in search.rounds(trials):
        run_plans(title, plans, quiet, log, results=False)
    if len(search.trials) < trials:
        print_text(f"The search ends after {len(search.trials)} trials, because it found no other values to try.", err)
    ranking = search.ranking()
    if not ranking:
        raise RunError(f"No trial of {search.path} has a result. Search a smaller range.")
    column = "validation ACC, %"
    print_rows(title, [{**t["values"], column: f"{100 * t['validation_acc']:.2f}"} for t in ranking[:SHOWN]])
    changes = [f"{key}={value}" for key, value in ranking[0]["values"].items()]
    results = [run.result() or {} for run in finished_runs(plan(changes))]
    acc = Spread.of([result["acc"] for result in results], 100).text(2)
    bwt = Spread.of([result["bwt"] for result in results]).text(3, "+")
    failed = f", {len(search.trials) - len(ranking)} failed" if len(ranking) < len(search.trials) else ""
    print_text(f"Best of {len(search.trials)} trials{failed}, on test sets: ACC {acc} %   BWT {bwt}")
    print_text(f"--set {' --set '.join(changes)}")
    print_text(f"in {search.path}", style="dim")
