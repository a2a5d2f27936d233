"""How long a report of many runs takes, how much memory it needs, how large its page is, and how fast Chromium opens it.

python benchmarks/report_size.py --settings 200 --seeds 5
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from remnant.experiments.execute import Plan, run
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import resolve
from remnant.report import write_report

FILES = ("accuracy.csv", "metrics.jsonl", "ranks.json", "result.json")


def make_runs(root: Path, settings: int, seeds: int) -> None:
    """Copies one small run of GPM to folders of other settings and seeds."""
    with tempfile.TemporaryDirectory() as folder:
        (made,) = run(Plan(resolve("permuted-digits", "gpm"), (0,), Path(folder), "cpu"))
        for number in range(settings):
            chosen = resolve("permuted-digits", "gpm", [f"lr={0.05 + number / 10_000}"])
            for seed in range(seeds):
                copy = RunFolder.create(root, chosen, seed).path
                for name in FILES:
                    shutil.copy(made.path / name, copy / name)


def opening_times(page: Path, profile: Path, times: int = 3) -> list[float]:
    """Seconds from the navigation until the page is drawn. The first one is of a browser that has just started."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "report"))
    from browser import Browser

    browser, found = Browser(profile), []
    for _ in range(times):
        browser.open("about:blank")
        start = time.perf_counter()
        browser.open(page.as_uri())
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found.append(time.perf_counter() - start)
    browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, report = Path(folder) / "runs", Path(folder) / "report"
        make_runs(runs, options.settings, options.seeds)
        start, thread = time.perf_counter(), time.process_time()
        content = write_report([runs], report)
        seconds, busy = time.perf_counter() - start, time.process_time() - thread
        page = (report / "index.html").stat().st_size / 1e6
        opened = opening_times(report / "index.html", Path(folder) / "profile")
    print(f"{len(content.collection.reading.runs):,} runs, {len(content.drawings):,} figures")
    print(f"{seconds:.1f} s ({busy:.1f} s of one core), a page of {page:.1f} MB")
    print(f"opened in {', '.join(f'{each:.2f}' for each in opened)} s")
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB of memory")


if __name__ == "__main__":
    main()
