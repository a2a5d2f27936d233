"""The docs site builds without a warning, every page opens in a browser and asks no other host, and every link works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browser import start_browser

pytest.importorskip("material", reason="needs mkdocs-material")
pytest.importorskip("mkdocstrings")
pytest.importorskip("latex2mathml")

ROOT = Path(__file__).parents[2]
# What a reader sees and can follow; the formulas must have a size, and no text may be left as LaTeX.
LOOK = """({
  title: document.title,
  links: [...document.querySelectorAll('a[href]')].map(a => a.href),
  anchors: [...document.querySelectorAll('[id]')].map(e => e.id),
  broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src),
  flat: [...document.querySelectorAll('math')].filter(m => m.getBoundingClientRect().height < 5).length,
  latex: document.querySelectorAll('.arithmatex').length,
  quotes: document.querySelectorAll('blockquote blockquote').length,
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
})"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(ROOT)
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))  # a warning is an error
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def pages(site: Path, address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a phone shows of each page, by its address."""
    browser = start_browser(tmp_path_factory.mktemp("profile"))
    browser.resize(400, phone=True)
    found = {}
    try:
        for file in sorted(site.rglob("index.html")):
            page = address + file.relative_to(site).as_posix().removesuffix("index.html")
            browser.requests, browser.complaints = [], []
            browser.open(page)
            found[page] = {**browser.run(LOOK), "requests": browser.requests, "complaints": browser.complaints}
    finally:
        browser.close()
    return found


def test_every_page_opens_and_asks_no_other_host(pages: dict[str, dict[str, Any]], address: str) -> None:
    assert len(pages) == len([page for page in (ROOT / "docs").glob("*.md") if not page.stem.endswith("-notes")])
    for page, seen in pages.items():
        assert "Remnant" in seen["title"], page
        assert not seen["complaints"], f"{page}: {seen['complaints']}"
        assert all(each.startswith((address, "data:")) for each in seen["requests"]), f"{page}: {seen['requests']}"


def test_pictures_formulas_and_examples_show_and_no_page_is_wider_than_a_phone(
    pages: dict[str, dict[str, Any]],
) -> None:
    for page, seen in pages.items():
        assert not seen["broken"], f"{page}: {seen['broken']}"
        assert not seen["flat"] + seen["latex"], f"{page} has a formula that does not show"
        assert not seen["quotes"], f"{page} shows an example (>>>) as a quotation"
        assert not seen["wide"], f"{page} scrolls sideways"


def test_every_link_leads_to_a_page_and_a_heading(pages: dict[str, dict[str, Any]], site: Path, address: str) -> None:
    broken = set()
    for page, seen in pages.items():
        for link in seen["links"]:
            target, _, anchor = link.partition("#")
            if not link.startswith(address):
                continue
            if target not in pages:
                lost = not (site / unquote(urlsplit(target).path).lstrip("/")).is_file()
            else:
                lost = bool(anchor) and unquote(anchor) not in pages[target]["anchors"]
            if lost:
                broken.add(f"{page} → {link}")
    assert not broken, "\n".join(sorted(broken))


def test_the_reference_has_every_public_name(pages: dict[str, dict[str, Any]], address: str) -> None:
    import remnant

    anchors = set(pages[f"{address}api/"]["anchors"])
    assert {f"remnant.{name}" for name in remnant.__all__} <= anchors
    members = {name for name in dir(remnant.GPM) if not name.startswith("_")}
    assert {f"remnant.GPM.{name}" for name in members} <= anchors
