"""index.html: valid, escaped, without external resources, and with working links."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from made_up import HOSTILE, MLP_RANKS, run, settings

from remnant.experiments.runs import RunFolder
from remnant.files import to_json
from remnant.report import write_report
from remnant.report.content import make_content
from remnant.report.page_data import page_data


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
        if self._open[-1:] not in (["script"], ["style"]):
            self.words.append(data)


def read(folder: Path) -> Page:
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def data_of(folder: Path) -> dict[str, Any]:
    """What the page's script draws from."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_nothing_is_loaded_from_anywhere(report: Path) -> None:
    page = read(report)
    assert all(load.startswith(("#", "data:")) for load in page.loads)
    assert not re.search(r"url\((?!#)|@import", (report / "index.html").read_text(encoding="utf-8"))


def test_every_link_leads_somewhere_and_ids_are_unique(report: Path) -> None:
    page = read(report)
    assert len(set(page.ids)) == len(page.ids)
    runs = {f"{variant['id']}/{made['seed']}" for variant in data_of(report)["variants"] for made in variant["runs"]}
    assert {unquote(link[5:]) for link in page.links if link.startswith("#run=")} == runs
    for link in page.links + page.loads:
        if link.startswith("#") and not link.startswith("#run="):
            assert link[1:] in ("", *page.ids), link
        elif link.startswith("#"):
            continue
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
    assert "1 run could not be read and is left out" in words
    assert re.search(r"pmnist/multitask/\w+/seed0 : result.json is damaged", words)
    assert "seed7: 1 of 3 tasks done" in words
    assert "GPM on Permuted MNIST was run with 2 different settings, which are kept apart" in words
    assert "unfinished: 1 of 3 tasks" in words


def test_files_beside_the_page(report: Path) -> None:
    figures = {file.stem for file in (report / "figures").glob("*.svg")}
    assert figures
    for kind in ("pdf", "png"):
        assert figures == {file.stem for file in (report / "figures").glob(f"*.{kind}")}
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
    assert any("my/own file.py:stream" in words for words in page.words)
    (variant,) = data_of(tmp_path / "report")["variants"]
    assert (variant["title"], variant["runs"][0]["ranks"]) == ("my/own file.py:stream", {"hidden.0": [3, 2, 1]})
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
    assert re.findall(r"<h2 [^>]*>([^<]+)</h2>", text)[:2] == ["Permuted digits", "Figures"]
    hidden = re.findall(r'<details class="table missing" id="table-([^"]+)"', text)
    assert {"table1a", "table3", "ranks-pmnist"} <= set(hidden)
    assert "everything" not in hidden
    sweep = re.search(r'<details id="figure-interference"[^>]*class="missing">(.*?)</details>', text, flags=re.DOTALL)
    assert sweep is not None
    assert "remnant sweep split-cifar100 gpm --over threshold.start=0.90,0.95,0.97,0.99" in sweep[1]


def test_the_data_holds_what_a_run_measured(tmp_path: Path) -> None:
    chosen = settings("pmnist", "gpm", ["lr=0.02"])
    run(tmp_path, chosen, 3, (0.9, 0.8), forgotten=0.1, ranks=MLP_RANKS, epochs=700)
    data = json.loads(to_json(page_data(make_content([tmp_path]).runs)))
    (variant,) = data["variants"]
    (made,) = variant["runs"]
    assert ["lr", "0.02", "changed"] in variant["settings"]
    assert variant["capacities"] == {"hidden.0": 784, "hidden.1": 100, "head": 100}
    assert (made["R"], made["state"], made["command"]) == (
        [[100.0], [90.0, 80.0]],
        "finished",
        "remnant run pmnist gpm --set lr=0.02 --seeds 3,",
    )
    run_of = RunFolder.open(tmp_path / made["path"])
    assert made["values"]["learning_accuracy"] == pytest.approx(run_of.read().result.learning_accuracy, rel=1e-11)
    assert ["device", "Made-up GPU"] in data["environments"][made["environment"]]
    assert len(made["loss"]) == len(made["epochs"]) <= 301  # of 700 epochs
    assert (made["epochs"][-1], made["loss"][-1]) == (700, round(1 / 700, 7))


def test_joint_training_has_one_row_and_no_bare_nan(tmp_path: Path) -> None:
    from remnant.evaluation import AccuracyMatrix

    folder = run(tmp_path, settings("pmnist", "multitask"), 0, (0.9, 0.9))
    (folder / "accuracy.csv").write_text(AccuracyMatrix(2, [[float("nan")], [0.9, 0.9]]).to_csv())
    (variant,) = page_data(make_content([tmp_path]).runs)["variants"]
    assert variant["runs"][0]["R"] == [[None], [90.0, 90.0]]
