"""index.html: valid, escaped, without external resources, and with working links."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from made_up import HOSTILE, run, settings

from remnant.report import write_report


class Page(HTMLParser):
    VOID = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in self.VOID:
            self._open.append(tag)
        self._attributes(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._attributes(tag, attrs)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "xlink:href", "data", "srcset", "action"):
                self.loads.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(folder: Path) -> Page:
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_anywhere(report: Path) -> None:
    page = read(report)
    assert all(load.startswith(("#", "data:")) for load in page.loads)
    assert not re.search(r"url\((?!#)|@import", (report / "index.html").read_text(encoding="utf-8"))


def test_every_link_leads_somewhere_and_ids_are_unique(report: Path) -> None:
    page = read(report)
    assert len(set(page.ids)) == len(page.ids)
    for link in page.links + page.loads:
        if link.startswith("#"):
            assert link[1:] in page.ids, link
        elif not link.startswith("data:"):
            assert (report / link).is_file(), link


def test_a_method_named_with_html_is_text(report: Path) -> None:
    page = read(report)
    assert page.tags["img"] == 0
    assert any(HOSTILE in words for words in page.words)
    for file in report.rglob("*.md"):
        assert "<img" not in file.read_text(encoding="utf-8")


def test_damaged_unfinished_and_other_runs_are_listed(report: Path) -> None:
    words = " ".join(" ".join(read(report).words).split())
    assert "1 run(s) could not be read" in words
    assert re.search(r"pmnist/multitask/\w+/seed0 : result.json is damaged", words)
    assert "1 run(s) are not finished" in words
    assert "seed7: 1 of 3 tasks done" in words
    assert "GPM on Permuted MNIST was run with 2 different settings, which are kept apart" in words
    assert "unfinished: 1 of 3 tasks" in words


def test_files_beside_the_page(report: Path) -> None:
    figures = {file.stem for file in (report / "figures").glob("*.svg")}
    assert figures
    assert figures == {file.stem for file in (report / "figures").glob("*.png")}
    tables = [{file.stem for file in (report / "tables").glob(f"*.{kind}")} for kind in ("md", "csv", "tex")]
    assert tables[0] == tables[1] == tables[2] >= {"table1a", "everything"}


def test_the_same_runs_give_the_same_bytes_and_no_leftovers(tmp_path: Path) -> None:
    runs, first, second = (tmp_path / name for name in ("runs", "first", "second"))
    run(runs, settings("pmnist", "gpm"), 0)
    gone = run(runs, settings("pmnist", "finetune"), 0)
    write_report([runs], first)
    (first / "figures" / "mine.svg").write_text("not the report's")
    for file in gone.iterdir():
        file.unlink()
    write_report([runs], first)
    write_report([runs], second)
    bytes_of = {
        root: {f.relative_to(root): f.read_bytes() for f in root.rglob("*") if f.is_file()} for root in (first, second)
    }
    assert bytes_of[first].pop(Path("figures/mine.svg")) == b"not the report's"
    assert bytes_of[first] == bytes_of[second]


def test_a_users_own_stream_is_a_benchmark(tmp_path: Path) -> None:
    run(tmp_path / "runs", settings("my/own file.py:stream", "gpm"), 0, ranks={"hidden.0": [3, 2, 1]}, memory_bytes=5)
    content = write_report([tmp_path / "runs"], tmp_path / "report")
    assert len(content.collection.reading.runs) == 1
    page = read(tmp_path / "report")
    assert any("GPM on my/own file.py:stream" in words for words in page.words)
    assert {file.parent.name for file in (tmp_path / "report").rglob("*.svg")} == {"figures"}


def test_without_a_readable_run_the_page_says_so(tmp_path: Path) -> None:
    (run(tmp_path / "none", settings("pmnist", "gpm"), 0) / "accuracy.csv").write_text("rot")
    content = write_report([tmp_path / "none"], tmp_path / "report")
    words = " ".join(read(tmp_path / "report").words)
    assert (content.collection.reading.runs, content.drawings) == ((), {})
    assert "No runs were found" in words
    assert "not run" in words
    assert not re.search(r"\bnan\b|None|Infinity", words)


def test_what_only_the_paper_has_is_behind_a_switch(tmp_path: Path) -> None:
    run(tmp_path / "runs", settings("permuted-digits", "finetune"), 0)
    write_report([tmp_path / "runs"], tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert 'id="show-missing"' in text
    columns = re.findall(r'<th scope="col"( class="missing")?>([^<]+)</th>', text.partition("</thead>")[0])
    assert columns[:3] == [("", "method"), ("", "permuted-digits"), (' class="missing"', "Permuted MNIST")]
    hidden = re.findall(r'<details class="table missing" id="table-([^"]+)"', text)
    assert {"table1a", "table3", "ranks-pmnist"} <= set(hidden)
    assert "everything" not in hidden
    sweep = re.search(r'<section id="figure-interference"[^>]*class="missing">(.*?)</section>', text, flags=re.DOTALL)
    assert sweep is not None
    assert "remnant sweep split-cifar100 gpm --over threshold.start=0.90,0.95,0.97,0.99" in sweep[1]
