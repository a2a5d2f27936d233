"""The page in a real browser: it loads without errors, works with mouse and keyboard, on a phone and in dark mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, NoBrowserError
from made_up import HOSTILE

from remnant.report.names import expected_methods


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        started = Browser(tmp_path_factory.mktemp("profile"))
    except NoBrowserError as error:
        pytest.skip(f"The page is tested in a browser: {error}.")
    yield started
    started.close()


@pytest.fixture
def page(chromium: Browser, report: Path) -> Browser:
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open("about:blank")
    chromium.requests.clear()
    chromium.complaints.clear()
    chromium.open((report / "index.html").as_uri())
    return chromium


CHOSEN = "[...document.querySelectorAll('.detail')].filter(d => d.offsetHeight).map(d => d.id)"
FOCUS = "document.activeElement.getAttribute('href') || document.activeElement.id"


def test_the_page_loads_without_errors_or_requests(page: Browser, report: Path) -> None:
    page.run("window.scrollTo(0, document.body.scrollHeight)")
    assert page.complaints == []
    assert page.requests == [(report / "index.html").as_uri()]
    assert page.run("performance.getEntriesByType('resource').length") == 0


def test_a_hostile_name_runs_nothing(page: Browser) -> None:
    assert page.run("document.title") == "Remnant: results"
    rows = page.run("[...document.querySelectorAll('.matrix tbody th')].map(th => th.textContent)")
    assert HOSTILE in rows


def test_figures_are_there_and_have_a_size(page: Browser) -> None:
    sizes = page.run(
        "[...document.querySelectorAll('#figures svg')].map(s => [s.getBoundingClientRect().width, s.getBBox().width])"
    )
    assert len(sizes) >= 8
    assert all(width > 200 and drawn > 100 for width, drawn in sizes)


def test_a_click_on_a_cell_shows_its_runs_and_no_others(page: Browser) -> None:
    assert page.run(CHOSEN) == []
    page.click("a[href='#run-pmnist-gpm']")
    page.expect(CHOSEN, ["run-pmnist-gpm"])
    assert page.run("document.querySelectorAll('#run-pmnist-gpm .variant').length") == 2
    page.click("a[href='#run-pmnist-finetune']")
    page.expect(CHOSEN, ["run-pmnist-finetune"])
    assert page.run("document.querySelector('[aria-current]').hash") == "#run-pmnist-finetune"
    page.run("history.back()")
    page.expect(CHOSEN, ["run-pmnist-gpm"])


def test_the_keyboard_moves_between_cells(page: Browser) -> None:
    for _ in range(60):  # by Tab alone, from the top of the page
        page.press("Tab")
        if page.run(FOCUS) == "#run-pmnist-gpm":
            break
    assert page.run(FOCUS) == "#run-pmnist-gpm"
    page.press("ArrowRight")
    assert page.run(FOCUS) == "#run-split-cifar100-gpm"
    page.press("ArrowRight")  # nothing was run further right: stays
    assert page.run(FOCUS) == "#run-split-cifar100-gpm"
    page.press("ArrowLeft")
    page.press("ArrowDown")
    assert page.run(FOCUS).startswith("#run-pmnist-")
    page.press("ArrowUp")
    page.press("Enter")
    page.expect(CHOSEN, ["run-pmnist-gpm"])
    assert page.run(FOCUS) == "run-pmnist-gpm"  # a screen reader goes on reading there
    page.press("Escape")
    assert page.run(FOCUS) == "#run-pmnist-gpm"
    page.expect(CHOSEN, [])


def test_a_screen_reader_hears_cells_figures_and_headings(page: Browser) -> None:
    heard = page.spoken()
    links = [name for role, name in heard if role == "link"]
    assert "GPM on Permuted MNIST: ACC 93.33 ± 1.00 per cent, BWT −0.015 ± 0.000, 3 seeds" in " ".join(links)
    figures = [name for role, name in heard if role in ("image", "img")]
    assert len(figures) >= 8
    assert all(len(name) > 30 for name in figures)
    assert ("heading", "Methods and benchmarks") in heard
    assert any(role == "columnheader" and name == "Permuted MNIST" for role, name in heard)
    assert "not run" in {name for _, name in heard}


def test_a_switch_shows_what_was_not_run(page: Browser) -> None:
    shown = "[...document.querySelectorAll('.matrix thead th')].filter(th => th.offsetWidth).length"
    assert page.run(shown) == 3  # the methods, and the two benchmarks that were run
    rows = "[...document.querySelectorAll('#table-table1a tbody tr')].filter(row => row.offsetHeight).length"
    assert page.run(rows) == 1
    page.click("#show-missing")
    assert page.run(shown) == 1 + len(expected_methods())
    assert page.run(rows) == 8


def test_a_phone_scrolls_down_and_not_sideways(page: Browser) -> None:
    page.resize(390, 844, phone=True)
    page.click("a[href='#run-pmnist-gpm']")
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run("[...document.querySelectorAll('svg.figure')].every(s => s.getBoundingClientRect().width <= 390)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_have_contrast_in_light_and_dark_mode(page: Browser, scheme: str) -> None:
    page.prefer(scheme)
    colours = page.run(
        """(() => {
        const of = (element, what) => getComputedStyle(element)[what].match(/[0-9.]+/g).slice(0, 3).map(Number);
        const figure = document.querySelector('#figures svg');
        return [of(document.body, 'backgroundColor'), of(document.body, 'color'),
                of(figure.closest('figure'), 'backgroundColor'), of(figure.querySelector('text'), 'fill'),
                of(document.querySelector('.small'), 'color')];
        })()"""
    )
    ground, ink, panel, drawn, small = (_luminance(colour) for colour in colours)
    assert (ground < 0.2) == (scheme == "dark")
    assert _contrast(ground, ink) > 7
    assert _contrast(panel, drawn) > 7
    assert _contrast(ground, small) > 4.5


def _luminance(colour: list[float]) -> float:
    """Relative luminance as WCAG defines it."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return (high + 0.05) / (low + 0.05)
