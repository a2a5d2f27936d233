"""Fuzzers: each damages files of one kind in many ways and counts what the package makes of them.

A module `fuzz_*.py` beside this one registers its fuzzers with `@fuzzer`. `make fuzz` runs all of them long and prints
one table; the test suite runs each with a small count.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from remnant.errors import UserError

COLUMNS = {
    "refused": "one of the package's own errors",
    "equal": "read, with the values from before the damage",
    "unchecked": "read with other values that make sense, and no checksum to tell",
    "traceback": "any other error",
    "silent": "read with other values, although a checksum or a rule forbids it",
}
FAULTS = ("traceback", "silent")
Counts = Counter[str]  # by the names of COLUMNS
Run = Callable[[int, int], Counts]  # (seed, count) → counts


class Fuzzer(NamedTuple):
    """A registered fuzzer and the number of cases of its long run."""

    run: Run
    long: int


FUZZERS: dict[str, Fuzzer] = {}


def fuzzer(name: str, long: int = 1000) -> Callable[[Run], Run]:
    """Registers a function (seed, count) → counts under a name for the table."""

    def register(run: Run) -> Run:
        FUZZERS[name] = Fuzzer(run, long)
        return run

    return register


def outcome(attempt: Callable[[], str]) -> str:
    """The column of one case: what `attempt` returns ("equal", "unchecked" or "silent"), or that of its error."""
    try:
        return attempt()
    except UserError:
        return "refused"
    except Exception:
        traceback.print_exc()
        return "traceback"


EXTREMES = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"\0\0\0\x80", b"\x01\0\0\0")


def damaged(data: bytes, dice: random.Random) -> bytes:
    """A copy of `data` with one to three faults: flipped bits, lost, doubled, zeroed or extreme bytes."""
    content = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        end = len(content)
        # Headers and tables of contents lie within the first or the last bytes.
        at = dice.choice((dice.randint(0, end), dice.randint(0, min(end, 512)), dice.randint(max(end - 2048, 0), end)))
        length = min(dice.choice((1, 4, 32, 512, 10**6)), len(content) - at)
        piece = bytes(content[at : at + length])
        extreme = dice.choice(EXTREMES)
        match dice.choice(("flip", "flip", "flip", "cut", "lose", "double", "zero", "extreme", "noise")):
            case "flip" if piece:
                content[at] ^= 1 << dice.randrange(8)
            case "cut":
                del content[at:]
            case "lose":
                del content[at : at + length]
            case "double":
                content[at:at] = piece
            case "zero":
                content[at : at + length] = bytes(length)
            case "extreme":
                content[at : at + len(extreme)] = extreme
            case "noise":
                content[at : at + min(length, 64)] = dice.randbytes(min(length, 64))
    return bytes(content)


def table(found: dict[str, tuple[Counts, float]]) -> str:
    """One line per fuzzer, and what the columns mean."""
    width = max(map(len, found))
    lines = [f"{'':{width}}{'cases':>9}" + "".join(f"{column:>11}" for column in COLUMNS) + f"{'seconds':>9}"]
    for name, (counts, seconds) in found.items():
        cells = "".join(f"{counts[column]:>11,}" for column in COLUMNS)
        lines.append(f"{name:{width}}{counts.total():>9,}{cells}{seconds:>9.0f}")
    return "\n".join([*lines, "", *(f"{column}: {meaning}" for column, meaning in COLUMNS.items())])


def main() -> int:
    """Runs the fuzzers whose names contain one of the arguments, or all of them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="cases per fuzzer; by default its long run")
    options = parser.parse_args()
    for path in sorted(Path(__file__).parent.glob("fuzz_*.py")):
        importlib.import_module(path.stem)
    found: dict[str, tuple[Counts, float]] = {}
    for name, (run, long) in FUZZERS.items():
        if not options.names or any(part in name for part in options.names):
            start = time.perf_counter()
            counts = run(options.seed, options.count or long)
            found[name] = counts, time.perf_counter() - start
            print(f"{name}: {counts.total():,} cases, {sum(counts[fault] for fault in FAULTS):,} faults", flush=True)
    print("\n" + table(found))
    return int(any(counts[fault] for counts, _ in found.values() for fault in FAULTS))


if __name__ == "__main__":
    import fuzz  # the module in which the fuzzers register themselves; this one is __main__

    sys.exit(fuzz.main())
