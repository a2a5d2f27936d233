"""Controls a headless Chromium through the DevTools protocol over two pipes, so that no package is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "/": (191, "/")}
# Chromium reads commands from descriptor 3 and writes to 4.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


class NoBrowserError(RuntimeError):
    """Chromium is not installed, or does not start."""


def find_browser() -> str:
    chosen = os.environ.get("REMNANT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if not chosen:
        raise NoBrowserError(f"no browser here ({', '.join(NAMES)}); install chromium or set REMNANT_BROWSER to one")
    return chosen


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not descriptors 3 and 4."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def start_browser(profile: Path) -> Browser:
    """A browser for tests, which are skipped where there is none. One that REMNANT_BROWSER names must start."""
    try:
        return Browser(profile)
    except NoBrowserError as error:
        if os.environ.get("REMNANT_BROWSER"):
            raise
        pytest.skip(str(error))


class Browser:
    """One page. Records its network requests and console messages."""

    def __init__(self, profile: Path, patience: float = 30.0) -> None:
        self.patience = patience
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._buffer, self._number = b"", 0
        self._loaded = False
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        command = [find_browser(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", START, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            targets = self._call("Target.getTargets", session=None)["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            attached = self._call("Target.attachToTarget", session=None, targetId=page, flatten=True)
        except (OSError, StopIteration, TimeoutError, KeyError) as error:
            self.close()
            raise NoBrowserError(f"{command[0]} does not start here ({error or type(error).__name__})") from error
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, address: str) -> None:
        self._loaded = False
        self._call("Page.navigate", url=address)
        self._until(lambda: self._loaded)

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def click(self, selector: str) -> None:
        """Clicks with the mouse on the middle of the element."""
        self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it may lay out more
        x, y = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def expect(self, expression: str, value: Any) -> None:
        """Waits until the expression has this value: the page may follow a link a moment after the click."""
        end = time.monotonic() + self.patience
        while (found := self.run(expression)) != value:
            assert time.monotonic() < end, f"{expression} is {found!r}, not {value!r}"
            time.sleep(0.01)

    def resize(self, width: int, height: int = 900, *, phone: bool = False, scale: float = 1.0) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def prefer(self, scheme: str) -> None:
        """ "light" or "dark"."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def spoken(self) -> list[tuple[str, str]]:
        """The role and the name of everything that a screen reader reads."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        met = [node for node in nodes if not node.get("ignored")]
        return [(node["role"]["value"], str(node.get("name", {}).get("value", ""))) for node in met if "role" in node]

    def picture(self, whole: bool = False) -> bytes:
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._in, self._out):
            os.close(descriptor)

    def _call(self, method: str, session: str | None = "", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._until(lambda: bool(answers), lambda said: answers.append(said) if said.get("id") == number else None)
        assert "error" not in answers[0], f"{method}: {answers[0]['error']}"
        result: dict[str, Any] = answers[0]["result"]
        return result

    def _until(self, done: Any, hear: Any = None) -> None:
        end = time.monotonic() + self.patience
        while not done():
            if b"\0" not in self._buffer:
                ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
                data = os.read(self._in, 1 << 20) if ready else b""
                if not data:
                    raise TimeoutError("it went away" if ready else f"it said nothing for {self.patience:.0f} s")
                self._buffer += data
                continue
            line, self._buffer = self._buffer.split(b"\0", 1)
            said = json.loads(line)
            self._note(said)
            if hear:
                hear(said)

    def _note(self, said: dict[str, Any]) -> None:
        about = said.get("params", {})
        match said.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])
