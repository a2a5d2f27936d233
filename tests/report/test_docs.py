"""docs/results.md and frontier.md, their figures and the README agree with results/; `make report` updates them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remnant.evaluation import Spread
from remnant.report.content import Content, make_content
from remnant.report.figures import digest_of
from remnant.report.page import DOCS_FIGURES, docs_figures, render_docs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STALE = "is out of date with results/. Run `make report`, and commit what it changed."


@pytest.fixture(scope="module")
def measured() -> Content:
    return make_content([ROOT / "results"])


@pytest.mark.parametrize("page", DOCS_FIGURES)
def test_the_pages_of_results_are_current(page: str, measured: Content) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert text == render_docs(page, measured, DOCS), f"docs/{page}.md {STALE}"


@pytest.mark.parametrize("page", DOCS_FIGURES)
def test_their_figures_are_current(page: str, measured: Content) -> None:
    """By the data in them: another release of matplotlib may draw the same data in other bytes."""
    figures = docs_figures(page, measured)
    assert figures
    for name, drawing in figures.items():
        svg = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert digest_of(svg) == drawing.digest, f"docs/figures/{name}.svg {STALE}"


def test_the_readme_shows_two_of_them(measured: Content) -> None:
    shown = re.findall(r"/docs/figures/([^)/]+)\.svg\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(shown) == 2
    assert set(shown) <= set(docs_figures("results", measured))


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
