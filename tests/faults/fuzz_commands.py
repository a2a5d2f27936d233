"""Command lines with odd words: each is carried out or refused with a short message, never a traceback."""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from fuzz import Counts, fuzzer, outcome

from remnant.__main__ import main

LONGEST = 4000  # letters of an error message, with all choices that it lists
QUICK = [
    "--set",
    "stream.tasks=2",
    "--set",
    "training.epochs=1",
    "--set",
    "network.hidden=[8]",
    "--device",
    "cpu",
    "-q",
]
NUMBERS = [
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "1.5",
    "1_000",
    "९",
    "0x10",
    "1e-400",
    "٣,",
    "1,,2",
    ",",
    "+1",
    "9" * 400,
    " 7",
]
WORDS = [
    "",
    " ",
    "x" * 5000,
    "\udcff",
    "\ud800",
    "a\nb",
    "a\0b",
    "../../..",
    "/",
    "~",
    "/dev/null",
    "/dev/full",
    "*",
    "%s",
]
WORDS += [
    "own.py",
    "own.py:",
    ":x",
    "own.py:x:y",
    "nowhere.py:x",
    "broken.py:x",
    "exits.py:x",
    "--",
    "-",
    "-q",
    "--help",
    "None",
    "{}",
    "[]",
    "[red]x[/red]",
]
KEYS = [
    "lr",
    "threshold",
    "threshold.start",
    "threshold.layers.*",
    "training.epochs",
    "training.batch",
    "network",
    "network.hidden",
]
KEYS += [
    "network.name",
    "optimizer",
    "optimizer.name",
    "stream.tasks",
    "stream.valid",
    "seed",
    "x",
    "training",
    ".",
    "lr.",
    "=",
    "lr.x",
]
VALUES = [
    "[[[",
    "{a = 1}",
    "'",
    '"',
    "true",
    "none",
    "1979-05-27",
    "[1, 'a']",
    "{start = 0.9}",
    "{layers = {}}",
    "=",
    "#",
    "1 # 2",
]


def _line(dice: random.Random) -> list[str]:
    """A command line with one or two odd words."""
    word = dice.choice([*WORDS, *NUMBERS])
    setting = f"{dice.choice(KEYS)}={dice.choice([*WORDS, *NUMBERS, *VALUES])}"
    option = dice.choice(["seeds", "parallel", "device", "steps", "protocol", "checkpoint-every", "log", "x"])
    run = ["run", "permuted-digits", dice.choice(["finetune", "gpm"]), *QUICK]
    return dice.choice(
        [
            [word],
            ["run", word],
            ["run", word, "gpm", *QUICK],
            ["run", "permuted-digits", word, *QUICK],
            [*run, "--set", setting],
            [*run, "--set", setting],
            [*run, "--set", setting, "--set", f"{dice.choice(KEYS)}={dice.choice(VALUES)}"],
            [*run, "--set", word],
            [*run, f"--{option}", word],
            [*run, f"--{option}={word}"],
            [*run, "--set", "lr=0.1", "--set", "lr=0.2"],
            [*run, word],
            ["sweep", "permuted-digits", "finetune", *QUICK, "--over", f"lr={word}"],
            ["sweep", "permuted-digits", "finetune", *QUICK, "--over", word],
            ["resume", word],
            ["resume", "damaged", "--device", dice.choice(["cpu", word])],
            ["report", word],
            ["report", "damaged", "-o", word],
            ["keep", word, "--runs", "damaged"],
            ["keep", "--runs", word],
            ["reproduce", word, "--no-run"],
            ["reproduce", "table1a", "--no-run", "--methods", word],
            ["reproduce", "table1a", "--no-run", "--seeds", word],
            ["list", word],
            ["list", "settings", word],
            ["list", "settings", "gpm", "--benchmark", word],
            ["data", dice.choice(["fetch", "add", "status", word]), word],
            ["data", "add", "mnist", word],
        ]
    )


def _carry_out(line: list[str]) -> str:
    """The column of one command line."""
    said, signals = io.StringIO(), {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said), patch.object(sys, "argv", ["remnant", *line]):
            main()
        code: object = 0
    except SystemExit as error:
        code = error.code
        said.write(code if isinstance(code, str) else "")
    finally:
        for name, handler in signals.items():
            signal.signal(name, handler)
    text = said.getvalue()
    if "Traceback" in text:
        raise AssertionError(f"{line}: {text}")
    if not code:
        return "equal"
    if not text.strip() or len(text) > LONGEST:
        print(f"{line}: {len(text)} letters: {text[:300]!r}", file=sys.stderr)
        return "silent"
    return "refused"


@fuzzer("command lines", 200)
def command_lines(seed: int, count: int) -> Counts:
    """Carries out command lines in an empty folder beside damaged runs and files that cannot be run."""
    dice, counts = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, {"REMNANT_DATA": folder}):
        Path("broken.py").write_text("x = (")
        Path("exits.py").write_text("import sys\nsys.exit(0)")
        Path("damaged/a/b/0123abcd/seed0").mkdir(parents=True)
        Path("damaged/a/b/0123abcd/seed0/settings.json").write_text('{"benchmark": 1}')
        for _ in range(count):
            line = _line(dice)
            counts[outcome(lambda line=line: _carry_out(line))] += 1
    return counts
