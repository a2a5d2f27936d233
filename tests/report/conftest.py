"""One report for all tests that only read it, because drawing takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import all_sorts

from remnant.report import write_report
from remnant.report.content import Content, make_content


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return all_sorts(tmp_path_factory.mktemp("made-up-runs"))


@pytest.fixture(scope="session")
def content(runs: Path) -> Content:
    return make_content([runs])


@pytest.fixture(scope="session")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("made-up-report")
    write_report([runs], target)
    return target
