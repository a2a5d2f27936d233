"""The page in a real browser: search, order, runs, overlays, files; with mouse and keyboard, on a phone, in dark mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, NoBrowserError, start_browser
from made_up import HOSTILE, settings

from remnant.report.watch import serving

GPM = f"pmnist/gpm/{settings('pmnist', 'gpm').digest}"
PLAIN = f"pmnist/finetune/{settings('pmnist', 'finetune').digest}"
OVERLAY = f"#overlay={GPM}&overlay={PLAIN}/1"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = start_browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def test_a_browser_that_is_named_and_does_not_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all tests in a browser would be skipped unnoticed where one is expected."""
    monkeypatch.setenv("REMNANT_BROWSER", "false")
    with pytest.raises(NoBrowserError, match="false does not start here"):
        start_browser(tmp_path)


@pytest.fixture
def page(chromium: Browser, report: Path) -> Browser:
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open("about:blank")
    chromium.requests.clear()
    chromium.complaints.clear()
    chromium.open((report / "index.html").as_uri())
    chromium.expect("document.querySelectorAll('[data-figures]:empty').length", 0)
    return chromium


def go(page: Browser, hash_: str) -> None:
    page.run(f"location.hash = {json.dumps(hash_)}")
    page.expect("document.getElementById('view').hidden", "=" not in hash_ or not hash_.startswith(("#run", "#over")))


def words(page: Browser, selector: str) -> list[str]:
    """The visible elements' text, without line breaks."""
    found: list[str] = page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].filter(e => e.getClientRects().length)"
        ".map(e => e.textContent.trim().replace(/\\s+/g, ' '))"
    )
    return found


def type_in(page: Browser, field: str, value: str) -> None:
    page.run(
        f"(f => {{ f.value = {json.dumps(value)}; f.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.getElementById({json.dumps(field)}))"
    )


def test_the_page_loads_without_errors_or_requests(page: Browser, report: Path) -> None:
    go(page, f"#run={GPM}/0")
    go(page, OVERLAY)
    assert page.complaints == []
    assert page.requests == [(report / "index.html").as_uri()]
    assert page.run("performance.getEntriesByType('resource').length") == 0


def test_a_hostile_name_runs_nothing(page: Browser) -> None:
    page.run("document.querySelector('#runs-table tr[data-method^=\"<\"] a').click()")
    page.expect("document.getElementById('view').hidden", value=False)
    assert HOSTILE in words(page, "#view h2")[0]
    assert page.run("document.title") != "owned"
    assert page.run("document.images.length") == 0


def test_every_run_is_a_link_within_the_first_screen(page: Browser) -> None:
    links = page.run(
        "[...document.querySelectorAll('.benchmark .seeds a')]"
        ".filter(a => a.getBoundingClientRect().bottom < innerHeight).length"
    )
    assert links == 11  # all that could be read, the unfinished one too
    assert words(page, ".benchmark h2") == ["Permuted MNIST", "10-split CIFAR-100"]


def test_search_and_choices_filter_every_table_and_are_in_the_address(page: Browser) -> None:
    type_in(page, "q", "Training.epochs=1 gpm")
    assert (words(page, "#found"), len(words(page, "#runs-table tbody tr"))) == (["1 of 11 runs"], 1)
    assert words(page, ".benchmark h2") == ["Permuted MNIST"]
    address = page.run("location.hash")
    type_in(page, "q", "")
    type_in(page, "state", "unfinished")
    assert words(page, "#runs-table tbody tr td:last-child") == ["unfinished: 1 of 3 tasks done"]
    go(page, address)
    assert words(page, "#found") == ["1 of 11 runs"]
    assert page.run("document.getElementById('q').value") == "Training.epochs=1 gpm"


def test_a_click_on_a_heading_sorts_and_dashes_come_last(page: Browser) -> None:
    column = "#runs-table th:nth-child(6)"
    page.click(f"{column} button")
    accs = words(page, "#runs-table td:nth-child(6)")
    assert accs == [*sorted(accs[:-1], key=float, reverse=True), "–"]
    page.click(f"{column} button")
    assert words(page, "#runs-table td:nth-child(6)") == [*sorted(accs[:-1], key=float), "–"]
    assert page.run(f"document.querySelector('{column}').getAttribute('aria-sort')") == "ascending"


def test_the_page_of_a_run(page: Browser) -> None:
    go(page, f"#run={GPM}/0")
    assert words(page, "#view h2") == ["GPM on Permuted MNIST, seed 0 finished"]
    assert "93.33" in words(page, ".tiles dd")
    assert words(page, "#view .command pre") == ["remnant run pmnist gpm --seeds 0,"]
    matrix = "figure[class=drawing]:has(svg[aria-label^='Accuracy matrix'])"
    numbers = words(page, f"{matrix} svg text")
    assert {"94.0", "93.0", "92.0", "95.0"} <= set(numbers)
    titles = words(page, "#view figcaption")
    assert {"Forgetting of each task", "Training loss, by epoch", "Accuracy on every task over time"} <= set(titles)
    assert any(title.startswith("Capacity") for title in titles)
    page.click(f"{matrix} summary")
    page.expect(f"document.querySelectorAll(`{matrix} tbody tr`).length", 3)
    assert words(page, "#view h3")[-2:] == ["Settings", "Environment"]


def test_an_unknown_run_says_so_and_sections_lead_back(page: Browser) -> None:
    go(page, "#run=pmnist/gpm/00000000/1")
    assert words(page, "#view h2") == ["This report does not have that run"]
    page.click("nav a[href='#notes']")
    page.expect("document.getElementById('home').hidden", value=False)
    page.expect("document.getElementById('notes').getBoundingClientRect().top < innerHeight", value=True)


def test_ticked_rows_are_overlaid(page: Browser) -> None:
    for chosen in (GPM, PLAIN):
        page.click(f".benchmark input[value='{chosen}']")
    assert words(page, "#chosen") == ["2 chosen"]
    page.click("#overlay")
    page.expect("document.querySelector('#view h2')?.textContent", "2 overlaid")
    cells = words(page, "#view tbody tr:first-child > *")
    assert cells[:4] == ["GPM", "3", "93.33 ± 1.00", "−0.015 ± 0.000"]
    assert "Accuracy on every task over time, %" in words(page, "#view figcaption")
    page.click("#view tbody tr a")  # removes GPM
    page.expect("document.querySelector('#view h2').textContent", "1 overlaid")
    page.press("Escape")
    page.expect("document.getElementById('home').hidden", value=False)
    assert words(page, "#chosen") == ["2 chosen"]  # the address has kept them


def test_methods_have_their_looks_and_more_seeds_have_others(page: Browser) -> None:
    go(page, "#" + "&".join(f"overlay={GPM}/{seed}" for seed in (0, 1, 2)) + f"&overlay={PLAIN}")
    shapes = page.run(
        "[...document.querySelectorAll('#view .named path')].map(p => p.getAttribute('fill') + p.getAttribute('d'))"
    )
    assert len(set(shapes)) == 4
    go(page, "#")
    home = page.run(f"document.querySelector('.benchmark tr[data-id=\"{PLAIN}\"] path').getAttribute('fill')")
    assert shapes[3].startswith(home)


def test_figures_are_files_as_svg_and_pdf(page: Browser) -> None:
    go(page, OVERLAY)
    page.run(
        "window.made = []; URL.createObjectURL = blob => (made.push(blob), 'blob:none');"
        "HTMLAnchorElement.prototype.click = () => 0;"
        "document.querySelectorAll('#view .files button').forEach(button => button.click())"
    )
    texts = page.run(
        "Promise.all(made.map(blob => blob.arrayBuffer().then(b => String.fromCharCode(...new Uint8Array(b)))))"
    )
    kinds = page.run("made.map(blob => blob.type)")
    assert kinds == ["image/svg+xml", "application/pdf"] * (len(texts) // 2)
    assert len(texts) >= 10
    for svg, pdf in zip(texts[::2], texts[1::2], strict=True):
        assert svg.startswith("<svg")
        check_pdf(pdf)
    assert "(GPM) Tj" in texts[1]


def check_pdf(text: str) -> None:
    """Every entry of the table of a PDF points to its object, and its stream is as long as it says."""
    assert text.startswith("%PDF-1.4")
    entries = text[text.index("xref") :].splitlines()[3:9]
    for number, entry in enumerate(entries, 1):
        assert text[int(entry.split()[0]) :].startswith(f"{number} 0 obj")
    stream = text.split("stream\n", 1)[1].split("\nendstream")[0]
    assert f"/Length {len(stream)} " in text


def test_the_keyboard_alone_opens_a_run_and_returns(page: Browser) -> None:
    focus = "document.activeElement.getAttribute('href') || document.activeElement.id"
    for _ in range(60):
        page.press("Tab")
        if page.run(focus) == f"#run={GPM}/0":
            break
    assert page.run(focus) == f"#run={GPM}/0"
    page.press("Enter")
    page.expect("document.activeElement.tagName", "H2")  # a screen reader reads on from there
    page.press("Escape")
    page.expect(focus, f"#run={GPM}/0")
    page.press("/")
    assert page.run(focus) == "q"


def test_a_switch_shows_what_was_not_run(page: Browser) -> None:
    rows = "[...document.querySelectorAll('#table-table1a tbody tr')].filter(row => row.offsetHeight).length"
    page.run("document.getElementById('paper').scrollIntoView()")
    page.expect(rows, 1)
    page.click("#show-missing")
    page.expect(rows, 8)


def test_a_watched_page_takes_changes_and_keeps_its_place(page: Browser, report: Path) -> None:
    files = {file.relative_to(report).as_posix(): file.read_bytes() for file in report.rglob("*.*") if file.is_file()}
    with serving(0) as server:
        server.show(files)
        page.open(f"http://127.0.0.1:{server.server_port}/#q=gpm&chosen={GPM}")
        page.expect("document.getElementById('watching').textContent", "Watching: the page follows the runs.")
        page.run("document.getElementById('q').focus(); window.scrollTo(0, 300)")
        server.show({**files, "index.html": files["index.html"].replace(b"10-split CIFAR-100", b"Another title")})
        page.expect("document.querySelector('#benchmark-2 h2').textContent.trim()", "Another title")
        assert words(page, "#chosen") == ["1 chosen"]
        assert page.run("[document.activeElement.id, scrollY]") == ["q", 300]
    page.expect("document.getElementById('watching').textContent.slice(0, 22)", "The server has stopped")


@pytest.mark.parametrize("view", ["#", f"#run={GPM}/0", OVERLAY])
def test_a_phone_scrolls_down_and_not_sideways(page: Browser, view: str) -> None:
    page.resize(390, 844, phone=True)
    go(page, view)
    assert page.run("document.documentElement.scrollWidth") <= 390
    widths = page.run("[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width)")
    assert max([0, *widths]) <= 390


@pytest.mark.skipif(find_spec("axe_core_python") is None, reason="needs axe-core-python")
@pytest.mark.parametrize(
    ("view", "width", "scheme"),
    [("#", 390, "dark"), (f"#run={GPM}/7", 1280, "dark"), (OVERLAY, 1280, "light")],
    ids=["home", "run", "overlay"],
)
def test_axe_finds_nothing_serious(page: Browser, view: str, width: int, scheme: str) -> None:
    page.resize(width, phone=width == 390)
    page.prefer(scheme)
    go(page, view)
    assert serious(page) == []


def serious(page: Browser) -> list[Any]:
    spec = find_spec("axe_core_python")
    assert spec is not None
    assert spec.origin is not None
    page.run((Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8") + ";0")
    found: list[Any] = page.run(
        "axe.run(document, {resultTypes: ['violations']}).then(result => result.violations"
        ".filter(v => ['serious', 'critical'].includes(v.impact)).map(v => [v.id, v.nodes[0].html]))"
    )
    return found
