"""Tests downloads with a local server: mirrors, resuming, checksums, and the files left after a failure."""

import hashlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from originals import digits_like, idx_folder, left_behind

from remnant.data import DataError, data_root, fetch, load_dataset
from remnant.data.sets import sources
from remnant.data.sets.sources import RemoteFile


@dataclass
class Mirror:
    """The files of a server, its behaviour, and the requests it received."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    drop_after: int | None = None  # bytes of the first answer, after which the line goes dead
    shifted: bool = False  # answers with another range than asked for
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def mirror() -> Iterator[Callable[..., Mirror]]:
    servers: list[ThreadingHTTPServer] = []

    def start(**settings: object) -> Mirror:
        state = Mirror(**settings)  # type: ignore[arg-type]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                state.asked.append((self.path[1:], wanted))
                content = state.files.get(self.path[1:])
                if content is None:
                    self.send_error(404)
                    return
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
                if start and start >= len(content):
                    self.send_error(416)
                    return
                first = start + 1 if state.shifted and start else start
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
                body = content[first:]
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if state.drop_after is not None:
                    body, state.drop_after = body[: state.drop_after], None
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        state.url = f"http://127.0.0.1:{server.server_port}/"
        return state

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def originals(tmp_path: Path) -> dict[str, bytes]:
    folder = idx_folder(tmp_path / "originals", digits_like(), zipped=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def offer(
    monkeypatch: pytest.MonkeyPatch, small_counts: Callable[..., None], originals: dict[str, bytes]
) -> Callable[..., None]:
    """Makes 'mnist' the small dataset of `originals`, served from the given addresses."""

    def use(*urls: str, checksums: bool = True) -> None:
        small_counts("mnist", 20, 10, 10)
        files = tuple(
            RemoteFile(name, tuple(url + name for url in urls), hashlib.sha256(data).hexdigest() if checksums else None)
            for name, data in sorted(originals.items())
        )
        monkeypatch.setitem(sources.SOURCES, "mnist", replace(sources.SOURCES["mnist"], files=files))

    return use


def dead_address() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}/"


def test_a_fetched_set_is_prepared_and_its_originals_are_cleared(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes], root: Path
) -> None:
    offer(mirror(files=originals).url)
    seen: list[tuple[str, int, int | None]] = []
    path = fetch("mnist", lambda *step: seen.append(step))
    assert np.array_equal(load_dataset("mnist").arrays["train_images"], digits_like()["train_images"])
    assert list(left_behind(root)) == [path]
    for name, data in originals.items():  # progress ends at the whole file
        assert [step for step in seen if step[0] == name][-1] == (name, len(data), len(data))


def test_a_ready_set_is_not_downloaded_again(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    server = mirror(files=originals)
    offer(server.url)
    fetch("mnist")
    asked = len(server.asked)
    fetch("mnist")
    assert len(server.asked) == asked


def test_a_broken_download_goes_on_where_it_stopped(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes], root: Path
) -> None:
    server = mirror(files=originals, drop_after=100)
    offer(server.url)
    with pytest.raises(DataError, match="broke off after 100 of"):
        fetch("mnist")
    assert not (root / "mnist.npz").exists()
    first = server.asked[0][0]
    fetch("mnist")
    assert server.asked[1] == (first, "bytes=100-")
    assert load_dataset("mnist").arrays["train_labels"].tolist() == digits_like()["train_labels"].tolist()


def test_the_next_mirror_goes_on_where_the_first_broke_off(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    one, two = mirror(files=originals, drop_after=64), mirror(files=originals)
    offer(one.url, two.url)
    fetch("mnist")
    assert two.asked[0] == (one.asked[0][0], "bytes=64-")


def test_a_server_without_ranges_is_read_from_the_start(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    server = mirror(files=originals, drop_after=100, ranges=False)
    offer(server.url)
    with pytest.raises(DataError):
        fetch("mnist")
    fetch("mnist")
    assert load_dataset("mnist").input_shape == (1, 28, 28)


def test_a_server_that_sends_another_range_is_passed_over(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    one, two = mirror(files=originals, drop_after=100, shifted=True), mirror(files=originals)
    offer(one.url)
    with pytest.raises(DataError):
        fetch("mnist")
    offer(one.url, two.url)
    fetch("mnist")
    assert two.asked[0][1] == "bytes=100-"


def test_a_stale_beginning_is_thrown_away_once_and_downloaded_again(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    server = mirror(files=originals)
    offer(server.url)
    name = min(originals)
    part = data_root() / "downloads" / "mnist" / f"{name}.part"
    part.parent.mkdir(parents=True)
    for stale in (b"x" * 50, b"x" * 10**6):  # shorter and longer than the real file
        part.write_bytes(stale)
        fetch("mnist")
        (data_root() / "mnist.npz").unlink()
        part.parent.mkdir(parents=True, exist_ok=True)


def test_the_first_mirror_down_the_second_serves(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    empty, full = mirror(), mirror(files=originals)
    offer(dead_address(), empty.url, full.url)
    fetch("mnist")
    assert len(full.asked) == 4


def test_a_wrong_checksum_on_one_mirror_falls_back_to_the_next(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    lying = mirror(files={name: data[::-1] for name, data in originals.items()})
    offer(lying.url, mirror(files=originals).url)
    fetch("mnist")
    assert load_dataset("mnist").input_shape == (1, 28, 28)


def test_wrong_checksums_everywhere_name_the_file_and_where_to_put_it_and_leave_nothing(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes], root: Path
) -> None:
    offer(mirror(files={name: data[::-1] for name, data in originals.items()}).url)
    with pytest.raises(DataError) as caught:
        fetch("mnist")
    message = str(caught.value)
    assert "wrong checksum" in message
    assert min(originals) in message
    assert f"put it in {root / 'downloads' / 'mnist'}" in message
    assert "remnant data add mnist PATH" in message
    assert list(left_behind(root)) == []


def test_offline_says_which_file_to_put_where_and_then_takes_it_from_there(
    offer: Callable[..., None], originals: dict[str, bytes], root: Path
) -> None:
    offer(dead_address(), dead_address())
    with pytest.raises(DataError, match=r"Connection refused.*put it in "):
        fetch("mnist")
    assert list(left_behind(root)) == []
    for name, data in originals.items():
        (root / "downloads" / "mnist" / name).write_bytes(data)
    fetch("mnist")
    assert load_dataset("mnist").input_shape == (1, 28, 28)


def test_a_bad_file_without_checksum_is_caught_by_conversion_and_not_kept(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes], root: Path
) -> None:
    server = mirror(files=dict.fromkeys(originals, b"<html>moved</html>"))
    offer(server.url, checksums=False)
    with pytest.raises(DataError, match="not an IDX file"):
        fetch("mnist", note=print)
    assert list(left_behind(root)) == []
    server.files = originals
    fetch("mnist", note=print)


def test_every_source_has_secure_addresses_first_and_plain_ones_only_with_a_checksum() -> None:
    for entry in sources.SOURCES.values():
        assert entry.files, entry.name
        assert len(entry.counts) == len(entry.classes)
        for file in entry.files:
            assert len(set(file.urls)) >= 2, file.name
            secure = [url.startswith("https://") for url in file.urls]
            assert secure == sorted(secure, reverse=True)
            assert secure[0]
            assert all(url.startswith(("http://", "https://")) and url.endswith(file.name) for url in file.urls)
            assert all(secure) if file.sha256 is None else re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_a_file_without_a_published_checksum_is_named_at_the_download(
    mirror: Callable[..., Mirror], offer: Callable[..., None], originals: dict[str, bytes]
) -> None:
    notes: list[str] = []
    offer(mirror(files=originals).url)
    fetch("mnist", note=notes.append)
    assert notes == []
    (data_root() / "mnist.npz").unlink()
    offer(mirror(files=originals).url, checksums=False)
    fetch("mnist", note=notes.append)
    assert len(notes) == 4
    assert min(originals) in notes[0]
    assert "SHA-256" in notes[0]
