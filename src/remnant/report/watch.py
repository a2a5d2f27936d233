"""Serves a report to this machine alone, and writes it again when a run has written something."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from remnant.errors import RunError, UserError
from remnant.experiments.runs import is_being_written, run_folders

from .content import Content, make_content
from .page import INDEX, POLICY, Rendered, replace_report, report_files

ADDRESS = "127.0.0.1"  # no other machine can connect
TYPES = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
PAUSES, REST = (1.0, 10.0), 3  # the shortest and longest pause in seconds; the pause relative to the work


class Server(ThreadingHTTPServer):
    """Serves the files of a report from memory, and nothing else."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.files: Mapping[str, bytes] = {}
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise UserError(f"Port {port} cannot be used ({error.strerror}). Choose another with --port.") from None
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def show(self, files: Mapping[str, bytes]) -> None:
        """Serves these files, and lets the page ask for changes."""
        page = files[INDEX].decode()
        page = page.replace(POLICY, f"{POLICY}; connect-src 'self'", 1).replace("<body>", '<body data-watch="yes">', 1)
        version = hashlib.sha256(files[INDEX]).hexdigest().encode()
        self.files = {**files, INDEX: page.encode(), "": page.encode(), "version": version}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/")
        # Another site may point its own name at this machine's address, and must not read results.
        if self.headers.get("Host") not in self.server.hosts or name not in self.server.files:
            self.send_error(404)
            return
        data = self.server.files[name]
        self.send_response(200)
        kind = TYPES.get(name.rpartition(".")[2] if name else "html", "text/plain")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints no requests, because the terminal is for errors."""


@contextmanager
def serving(port: int) -> Iterator[Server]:
    """Starts a server that answers in a thread, and ends it."""
    server = Server(port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def watch_report(
    roots: Sequence[Path],
    target: Path,
    port: int,
    started: Callable[[str, Content], None],
    failed: Callable[[str], None],
) -> None:
    """Writes and serves a report until an interrupt.

    Args:
        roots: Folders with run folders in them.
        target: The folder of the report.
        port: The port on 127.0.0.1; 0 picks a free one.
        started: Called with the address once the report is served.
        failed: Called with a sentence if the report could not be written again. The previous one stays.
    """
    rendered: Rendered = {}
    seen: list[tuple[str, int, int]] | None = None
    with serving(port) as server:
        while True:
            start = time.monotonic()
            first, before = seen is None, seen
            try:
                if (seen := _signature(roots)) != before:
                    content = make_content(roots)
                    files = report_files(content, rendered)
                    replace_report(target, files)
                    server.show(files)
                    if first:
                        started(f"http://{ADDRESS}:{server.server_port}/", content)
            except (RunError, OSError) as error:  # such as a run that is being removed
                if first:
                    raise
                failed(str(error))
            shortest, longest = PAUSES
            time.sleep(min(max(shortest, REST * (time.monotonic() - start)), shortest if first else longest))


def _signature(roots: Sequence[Path]) -> list[tuple[str, int, int]]:
    """The files of all runs with their times and sizes, and which unfinished runs a process is writing."""
    found = []
    for folder in (folder for root in roots for folder in run_folders(root)):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".json", ".jsonl", ".csv")):
                    stat = entry.stat()
                    found.append((entry.path, stat.st_mtime_ns, stat.st_size))
        if not (folder / "result.json").exists():
            found.append((str(folder), int(is_being_written(folder)), 0))
    return sorted(found)
