"""Odd command lines give a short message, and signals end a command like Ctrl-C."""

from __future__ import annotations

import fuzz_commands
from fuzz import FAULTS, FUZZERS

assert fuzz_commands  # registers its fuzzer


def test_no_traceback_and_no_endless_message() -> None:
    counts = FUZZERS["command lines"].run(1, 40)
    assert counts.total() == 40
    assert not any(counts[fault] for fault in FAULTS), counts
