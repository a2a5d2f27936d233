"""A figure of the report: its data, the function that draws it, a description in words, and the look of all figures."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib import rc_params_from_file, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

RC: Any = rc_params_from_file(Path(__file__).parent / "remnant.mplstyle", use_default_template=False)
INK: str = RC["text.color"]
FAINT: str = RC["grid.color"]
DARK_INK = "#ececf1"
# The palette of Okabe and Ito, which the colour-blind can tell apart, with ink for black, and without yellow, which is
# invisible on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))
REFERENCE: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}  # for a line that marks a value
LEGEND_ROWS, ROW_HEIGHT = 2, 0.21  # a figure has room for two rows, and each further one adds so many inches
FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana is as wide, and other fonts are narrower: no text overflows
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
        rounded = json.loads(json.dumps(self.data), parse_float=lambda digits: float(f"{float(digits):.10g}"))
        text = json.dumps(rounded, sort_keys=True)
        return hashlib.sha256(f"{self.name}\n{self.title}\n{self.alt}\n{text}".encode()).hexdigest()[:16]

    def render(self) -> dict[str, bytes]:
        """Draws an SVG, for a page or alone, and a PDF and a PNG on white, for documents. The keys are their endings."""
        with styled():
            figure = self.draw(self.data)
            vector, paper, pixels = io.StringIO(), io.BytesIO(), io.BytesIO()
            # `savefig` would draw each of them twice, which takes twice the time.
            svg: Any = FigureCanvasSVG(figure)
            svg.print_svg(vector, metadata={"Date": None, "Creator": None})
            figure.set_layout_engine("none")  # PDF and PNG need not repeat the layout
            figure.set_facecolor("white")
            pdf: Any = FigureCanvasPdf(figure)
            pdf.print_pdf(paper, metadata={"CreationDate": None, "Creator": None, "Producer": None})
            figure.set_dpi(160)
            png: Any = FigureCanvasAgg(figure)
            png.print_png(pixels, metadata={"Software": None})
        return {"svg": self._cleaned(vector.getvalue()).encode(), "pdf": paper.getvalue(), "png": pixels.getvalue()}

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
        lengths = r'\b(?:d|x|y|transform|width|height)="[^"]*"'  # a hundredth of a point is precise enough
        rest = re.sub(lengths, lambda attribute: re.sub(r"(\.\d\d)\d+", r"\1", attribute[0]), rest)
        rest = re.sub(r"\n\s*", "\n", rest)
        alt = escape(self.alt, quote=False).replace('"', "&quot;").replace("\n", " ")
        start = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="figure" '
            f'viewBox="{box[1]}" width="{width}" height="{height}" font-family="{FONTS}" '
            f'role="img" aria-label="{alt}" data-digest="{self.digest}">'
        )
        return f"{start}\n{STYLE}{rest.rstrip()}\n"


def digest_of(svg: str) -> str:
    """Returns the digest in a figure's file: the digest of the data that it was drawn from."""
    found = re.search(r'data-digest="([0-9a-f]+)"', svg)
    return found[1] if found else ""


def look(number: int) -> dict[str, Any]:
    """Returns the look of a line as matplotlib's options. The first 77 looks differ in colour or marker."""
    return {"color": COLOURS[number % 7], "marker": MARKERS[number % 11], "linestyle": DASHES[number // 7 % 4]}


def styled() -> AbstractContextManager[None]:
    """Uses our style inside a `with` block, whatever the user's matplotlibrc says."""
    context: AbstractContextManager[None] = style.context(["default", RC])
    return context


def canvas(width: float = 4.8, height: float = 3.5, **options: Any) -> tuple[Figure, Any]:
    """A figure with one plot (or `nrows=…`). It does not use pyplot, so no global state changes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**options)


def finish(figure: Figure, axes: Axes, xlabel: str, ylabel: str, ticks: int | None = None) -> Figure:
    """Names the axes, and puts a legend under the plot. `ticks` limits the x-axis ticks; without it they are whole numbers."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(ticks) if ticks else MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        width = 72 * figure.get_figwidth()
        columns = int(width // (50 + 5.8 * max(map(len, labels))))  # line and gaps, and the mean width of a letter
        columns = min(max(columns, 1), len(labels))
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + ROW_HEIGHT * max(rows - LEGEND_ROWS, 0))
        spacing = {"handlelength": 2.6, "columnspacing": 1.2}
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, **spacing)
    return figure
