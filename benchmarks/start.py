"""How long `import remnant` and `remnant list` take, against importing torch, which neither needs; a small run, which does.

python benchmarks/start.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

GOES = 7
LISTS = ("methods", "benchmarks", "models", "settings gpm", "settings gpm --benchmark split-cifar100")
RUNS = ("run permuted-digits gpm --quiet", "demo")
CLOCK = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def command(*words: str) -> float:
    """Seconds of a whole process, the fastest of several."""
    times = []
    for _ in range(GOES):
        with tempfile.TemporaryDirectory() as folder:  # for what it writes
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=folder)
            times.append(time.perf_counter() - start)
    return min(times)


def inside(code: str, before: str = "pass") -> float:
    """Seconds of a statement in a fresh interpreter, after another."""
    words = [sys.executable, "-c", f"{before}; " + CLOCK.format(code)]
    return min(float(subprocess.run(words, check=True, capture_output=True, text=True).stdout) for _ in range(GOES))


def main() -> None:
    torch = inside("import torch")
    print(f"{'import torch':<50} {torch:6.2f} s")
    print(f"{'import remnant':<50} {inside('import remnant'):6.2f} s")
    print(f"{'from remnant import GPM, torch there':<50} {inside('from remnant import GPM', 'import torch'):6.2f} s")
    print(f"{'python -m remnant --help':<50} {command('-m', 'remnant', '--help'):6.2f} s")
    for words in RUNS:
        print(f"{f'python -m remnant {words}':<50} {command('-m', 'remnant', *words.split()):6.2f} s")
    lists = [command("-m", "remnant", "list", *words.split()) for words in LISTS]
    print(f"{'python -m remnant list (the slowest)':<50} {max(lists):6.2f} s")
    print(f"ratio {torch / max(lists):.1f}: importing torch takes so many times as long as a list")


if __name__ == "__main__":
    main()
