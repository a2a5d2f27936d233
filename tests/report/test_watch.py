"""`remnant report --watch`: a server for this machine alone that follows the runs and ends on Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from made_up import run, settings
from typer.testing import CliRunner

from remnant.cli import app
from remnant.errors import RunError, UserError
from remnant.experiments.runs import RunFolder
from remnant.report import watch_report
from remnant.report.watch import serving

FILES = {"index.html": b"<body>default-src 'none'", "figures/a.svg": b"<svg/>"}


def get(address: str, host: str = "") -> str:
    headers = {"Host": host} if host else {}
    with urlopen(Request(address, headers=headers), timeout=10) as answer:
        return str(answer.read().decode())


def in_pauses(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Takes one step in each pause of the watch, then presses Ctrl-C."""
    left = list(steps)

    def pause(seconds: float) -> None:
        assert seconds >= 1
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr("remnant.report.watch.time.sleep", pause)


def test_only_this_machine_and_only_the_report_is_served() -> None:
    with serving(0) as server:
        server.show(FILES)
        assert server.server_address[0] == "127.0.0.1"
        address = f"http://127.0.0.1:{server.server_port}"
        assert get(f"{address}/figures/a.svg") == "<svg/>"
        assert get(f"{address}/") == get(f"{address}/index.html?x=1")
        for path, host in (("/../conftest.py", ""), ("/figures/", ""), ("/", "elsewhere.example")):
            with pytest.raises(HTTPError, match="404"):
                get(address + path, host)


def test_the_page_follows_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, pages, said = tmp_path / "runs", [], []
    chosen = settings("pmnist", "gpm")
    run(runs, chosen, 0, finished=False)  # which has no figures to draw
    address = ""

    def started(where: str, _: object) -> None:
        nonlocal address
        address = where

    def look() -> None:
        pages.append((get(f"{address}version"), get(address)))

    def damage() -> None:
        look()
        (runs / "pmnist").rename(tmp_path / "gone")

    in_pauses(monkeypatch, look, lambda: (look(), run(runs, chosen, 1, finished=False)), damage, look)
    with pytest.raises(KeyboardInterrupt):
        watch_report([runs], tmp_path / "report", 0, started, said.append)
    versions = [version for version, _ in pages]
    assert versions[0] == versions[1] != versions[2] == versions[3]  # a report that fails leaves the one before
    assert [page.count("data-state=") for _, page in pages] == [2, 2, 3, 3]
    assert 'data-watch="yes"' in pages[0][1]
    assert "connect-src 'self'" in pages[0][1]
    assert [sentence.endswith("such as results or runs.") for sentence in said] == [True]
    saved = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "data-watch=" not in saved.partition("<main")[0]
    assert "connect-src" not in saved


def test_a_run_that_is_being_written_is_under_way(tmp_path: Path) -> None:
    from remnant.report.content import make_content

    folder = run(tmp_path, settings("pmnist", "gpm"), finished=False)
    (made,) = make_content([tmp_path]).runs
    assert made.state == "unfinished"
    with RunFolder.open(folder).lock():
        RunFolder.open(folder).record(task=1, epoch=2, loss=0.5, valid_accuracy=0.5)
        (made,) = make_content([tmp_path]).runs
        assert (made.state, made.record.position) == ("under way", "task 2 of 3, epoch 2 of 5")
        assert made.record.share_done == round((1 + 2 / 5) / 3, 3)


def test_ctrl_c_ends_it_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "runs", settings("pmnist", "gpm"), finished=False)
    in_pauses(monkeypatch)
    words = ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report"), "--watch", "--port", "0"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "Stopped. The report is kept.")
    assert "Serving http://127.0.0.1:" in result.output


def test_a_port_in_use_and_a_folder_without_runs_are_errors(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="Choose another with --port"):
            watch_report([tmp_path], tmp_path / "report", taken.getsockname()[1], lambda *_: None, lambda _: None)
    with pytest.raises(RunError, match="contains no run"):
        watch_report([tmp_path], tmp_path / "report", 0, lambda *_: None, lambda _: None)
