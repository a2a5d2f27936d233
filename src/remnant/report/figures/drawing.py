"""A figure of the report: what it shows as plain data, how to draw that, and what to say to those who cannot see it."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from .style import INK, styled

DARK_INK = "#ececf1"
FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana is as wide, what else there is narrower: nothing runs over
STYLE = (
    f"<style>.figure{{color:{INK}}}.figure *{{stroke-linejoin:round;stroke-linecap:butt}}"
    f"@media(prefers-color-scheme:dark){{.figure{{color:{DARK_INK}}}}}</style>"
)


@dataclass(frozen=True)
class Drawing:
    """`draw(data)` sees nothing but `data`, so that `digest` tells whether a file on disk still shows what was measured."""

    name: str  # of its files
    title: str
    alt: str  # the figure in words
    data: Mapping[str, Any]  # JSON
    draw: Callable[[Mapping[str, Any]], Figure]
    remark: str = ""

    @property
    def digest(self) -> str:
        # Ten digits: another machine's sums may differ in the last.
        text = json.dumps(_rounded(self.data), sort_keys=True)
        return hashlib.sha256(f"{self.name}\n{self.title}\n{self.alt}\n{text}".encode()).hexdigest()[:16]

    def render(self) -> tuple[str, bytes]:
        """As SVG, to stand alone or in a page, and as PNG on white, for documents."""
        with styled():
            figure = self.draw(self.data)
            vector, pixels = io.StringIO(), io.BytesIO()
            figure.savefig(vector, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            figure.set_layout_engine("none")  # laid out once: the second file need not be measured again
            figure.savefig(pixels, format="png", dpi=160, facecolor="white", metadata={"Software": None})
        return self._own(vector.getvalue()), pixels.getvalue()

    def _own(self, text: str) -> str:
        body = text[text.index("<svg") :]
        head, rest = body.split(">", 1)
        box = re.search(r'viewBox="([^"]+)"', head)
        assert box is not None
        width, height = box[1].split()[2:]
        rest = re.sub(
            r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", rest, flags=re.DOTALL
        )
        # Several figures share a page: their ids must not clash, and most are not needed.
        rest = re.sub(r'<g id="[^"]*"', "<g", rest)
        rest = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', rest)
        rest = re.sub(r'((?:xlink:)?href="|url\()#', rf"\1#{self.name}-", rest)
        rest = rest.replace(INK, "currentColor").replace("font-family: 'DejaVu Sans'; ", "")
        rest = re.sub(r' transform="rotate\(-0 [^"]*"', "", rest)
        rest = re.sub(r'\b(?:d|x|y|transform|width|height)="[^"]*"', _shortened, rest)
        rest = re.sub(r"\n\s*", "\n", rest)
        begin = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="figure" '
            f'viewBox="{box[1]}" width="{width}" height="{height}" font-family="{FONTS}" '
            f'role="img" aria-label="{_attribute(self.alt)}" data-digest="{self.digest}">'
        )
        return f"{begin}\n{STYLE}{rest.rstrip()}\n"


@dataclass(frozen=True)
class Absent:
    """A figure that nothing measured can fill yet, and the command that would."""

    name: str
    title: str
    why: str
    command: str


def digest_of(svg: str) -> str:
    """The digest of the data a figure's file was drawn from."""
    found = re.search(r'data-digest="([0-9a-f]+)"', svg)
    return found[1] if found else ""


def _shortened(attribute: re.Match[str]) -> str:
    """A hundredth of a point is fine enough."""
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])


def _attribute(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("\n", " ")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
