"""Run folders with damaged or forged files: one sentence each, and no other run suffers."""

from __future__ import annotations

import fuzz_folders
import pytest
from fuzz import FAULTS, FUZZERS

assert fuzz_folders  # registers its fuzzers


@pytest.mark.parametrize("name", ["run folders", "checkpoints"])
def test_no_traceback_and_no_other_result(name: str) -> None:
    counts = FUZZERS[name].run(1, 20)
    assert counts.total() == 20
    assert not any(counts[fault] for fault in FAULTS), counts
