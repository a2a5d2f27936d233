"""The details of one set of settings."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from made_up import run, settings

from remnant.cli.runs import parse_seeds
from remnant.report.content import make_content


@pytest.mark.parametrize("seeds", [(0,), (7,), (0, 1), (1, 4, 9)])
def test_the_command_to_run_again_has_the_same_seeds(seeds: tuple[int, ...], tmp_path: Path) -> None:
    for seed in seeds:
        run(tmp_path, settings("pmnist", "gpm", ["lr=0.02"]), seed)
    (variant,) = make_content([tmp_path]).collection.variants
    words = shlex.split(variant.command([run.seed for run in variant.runs]))
    assert words[:-1] == ["remnant", "run", "pmnist", "gpm", "--set", "lr=0.02", "--seeds"]
    assert parse_seeds(words[-1]) == seeds
