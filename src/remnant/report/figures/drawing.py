"""A figure of the report: its data, the function that draws it, and a description in words."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib.figure import Figure

from .style import INK, styled

DARK_INK = "#ececf1"
FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana is as wide, and other fonts are narrower: nothing runs over
STYLE = (
    f"<style>.figure{{color:{INK}}}.figure *{{stroke-linejoin:round;stroke-linecap:butt}}"
    f"@media(prefers-color-scheme:dark){{.figure{{color:{DARK_INK}}}}}</style>"
)


@dataclass(frozen=True)
class Drawing:
    """A figure. `draw` uses nothing but `data`, so `digest` shows whether a file is up to date."""

    name: str  # of its files
    title: str
    alt: str  # the figure in words
    data: Mapping[str, Any]  # JSON
    draw: Callable[[Mapping[str, Any]], Figure]
    remark: str = ""

    @property
    def digest(self) -> str:
        # Ten digits, because sums on another machine may differ in the last one.
        text = json.dumps(_rounded(self.data), sort_keys=True)
        return hashlib.sha256(f"{self.name}\n{self.title}\n{self.alt}\n{text}".encode()).hexdigest()[:16]

    def render(self) -> tuple[str, bytes]:
        """Draws an SVG, for a page or alone, and a PNG on white, for documents."""
        with styled():
            figure = self.draw(self.data)
            vector, pixels = io.StringIO(), io.BytesIO()
            figure.savefig(vector, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            figure.set_layout_engine("none")  # the layout is done: the PNG need not repeat it
            figure.savefig(pixels, format="png", dpi=160, facecolor="white", metadata={"Software": None})
        return self._cleaned(vector.getvalue()), pixels.getvalue()

    def _cleaned(self, text: str) -> str:
        """Makes matplotlib's SVG smaller, gives it our attributes, and lets its colours follow the page."""
        head, rest = text[text.index("<svg") :].split(">", 1)
        box = re.search(r'viewBox="([^"]+)"', head)
        assert box is not None
        width, height = box[1].split()[2:]
        unused = r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->"
        rest = re.sub(unused, "", rest, flags=re.DOTALL)
        # Several figures share a page, so their ids must not clash. Most ids are not needed.
        rest = re.sub(r'<g id="[^"]*"', "<g", rest)
        rest = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', rest)
        rest = re.sub(r'((?:xlink:)?href="|url\()#', rf"\1#{self.name}-", rest)
        rest = rest.replace(INK, "currentColor").replace("font-family: 'DejaVu Sans'; ", "")
        rest = re.sub(r' transform="rotate\(-0 [^"]*"', "", rest)
        rest = re.sub(r'\b(?:d|x|y|transform|width|height)="[^"]*"', _two_digits, rest)
        rest = re.sub(r"\n\s*", "\n", rest)
        alt = escape(self.alt, quote=False).replace('"', "&quot;").replace("\n", " ")
        start = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="figure" '
            f'viewBox="{box[1]}" width="{width}" height="{height}" font-family="{FONTS}" '
            f'role="img" aria-label="{alt}" data-digest="{self.digest}">'
        )
        return f"{start}\n{STYLE}{rest.rstrip()}\n"


def digest_of(svg: str) -> str:
    """The digest of the data from which a figure's file was drawn."""
    found = re.search(r'data-digest="([0-9a-f]+)"', svg)
    return found[1] if found else ""


def _two_digits(attribute: re.Match[str]) -> str:
    """A hundredth of a point is precise enough."""
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
