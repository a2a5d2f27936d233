"""docs/results.md, its figures and the README agree with results/; `make report` updates them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remnant.evaluation import Spread
from remnant.report.content import Content, make_content
from remnant.report.figures import digest_of
from remnant.report.page import NOTES, docs_figures, render_docs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STALE = "is out of date with results/. Run `make report`, and commit what it changed."


@pytest.fixture(scope="module")
def measured() -> Content:
    return make_content([ROOT / "results"])


def test_the_page_of_results_is_current(measured: Content) -> None:
    notes = (DOCS / NOTES).read_text(encoding="utf-8")
    assert (DOCS / "results.md").read_text(encoding="utf-8") == render_docs(measured, notes), f"docs/results.md {STALE}"


def test_its_figures_are_current(measured: Content) -> None:
    """By the data in them: another release of matplotlib may draw the same data in other bytes."""
    figures = docs_figures(measured)
    assert figures
    for name, drawing in figures.items():
        svg = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert digest_of(svg) == drawing.digest, f"docs/figures/{name}.svg {STALE}"


def test_the_readme_shows_two_of_them(measured: Content) -> None:
    shown = re.findall(r"/docs/figures/([^)/]+)\.svg\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(shown) == 2
    assert set(shown) <= set(docs_figures(measured))


def test_nothing_in_results_is_damaged(measured: Content) -> None:
    assert measured.collection.reading.damaged == ()


def test_the_readmes_numbers_are_those_of_results(measured: Content) -> None:
    kept = {
        (v.acc.text(2), Spread(v.bwt.mean).text(3).replace("-", "−"))
        for v in measured.collection.variants
        if v.acc.mean is not None and v.bwt.mean is not None
    }
    words = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| [^|]+ \| (\d\d\.\d\d(?: ± \d\.\d\d)?) / \+?(−?\d\.\d{3}) \|", words, flags=re.MULTILINE)
    assert len(said) >= 4
    assert set(said) <= kept, "README.md has numbers that are not in results/."
