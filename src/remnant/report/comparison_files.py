"""A comparison as a table for people (terminal, Markdown, LaTeX) and as records for programs (JSON, CSV)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from remnant.evaluation import Spread
from remnant.files import explained, to_json, write

from .comparison import BEST, CANNOT_SAY, MEASURES, Compared, Comparison, Estimate, Measure, Row
from .grid import Column, Grid, csv_text, not_a_formula
from .names import slug

FORMATS = {"markdown": "md", "latex": "tex", "json": "json", "csv": "csv"}  # and the endings of their files
VERDICTS = {BEST: True, CANNOT_SAY: None, "": False}


def comparison_grid(comparison: Comparison) -> Grid:
    """Makes the table. The column after ACC has the differences in ACC."""
    columns = [Column("method", text=True), Column("settings", text=True), Column("seeds")]
    for name, measure in MEASURES.items():
        columns += [Column(measure.heading)] + [Column("difference [95 %]")] * (name == "acc")
    marked = {name for name in MEASURES if any(row.estimates[name].mark for row in comparison.rows)}
    rows = [
        (row.variant.method, comparison.label(row), str(len(row.variant.runs)), *_cells(row, marked))
        for row in comparison.rows
    ]
    grid = Grid("comparison", comparison.title, tuple(columns), tuple(rows), _remarks(comparison))
    return grid.without_empty_columns()


def _cells(row: Row, marked: set[str]) -> Iterator[str]:
    for name, measure in MEASURES.items():
        estimate = row.estimates[name]
        mark = f" {estimate.mark or ' '}" if name in marked else ""  # a blank keeps numbers without a mark aligned
        yield f"{measure.text(estimate.value)}{mark}".replace("-", "−")
        if name == "acc":
            yield _difference(estimate, measure)


def _difference(estimate: Estimate, measure: Measure) -> str:
    """Returns `−1.20 [−2.10, −0.30]`, without brackets if there is no interval. The best has no difference."""
    if estimate.difference is None:
        return ""
    mean, *bounds = (measure.text(Spread(x), "+") for x in (estimate.difference, *(estimate.interval or ())))
    return (f"{mean} [{', '.join(bounds)}]" if bounds else mean).replace("-", "−")


def _remarks(comparison: Comparison) -> tuple[str, ...]:
    estimates = [row.estimates["acc"] for row in comparison.rows]
    others = [estimate for estimate in estimates if estimate.difference is not None]
    remarks = []
    if others:
        remarks.append(
            f"{BEST} The best, or not significantly different from it: the 95 % interval of the difference includes 0. "
            "Each interval is for one pair of methods."
        )
    if any(estimate.mark == CANNOT_SAY for estimate in estimates):
        remarks.append(f"{CANNOT_SAY} One seed has no interval. Run more seeds.")
    if any(estimate.interval and not estimate.paired for estimate in others):
        remarks.append("Where the seeds differ from the best method's, the interval is Welch's, else it is paired.")
    if bounds := [row.variant.method for row in comparison.rows if row.bound]:
        remarks.append(f"{' and '.join(dict.fromkeys(bounds))}: a bound, which is not ranked.")
    return tuple(remarks)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Returns a comparison as JSON, with accuracies as fractions. `best` is null where there is no interval."""
    return {
        "benchmark": comparison.benchmark,
        "stream": list(comparison.stream),
        "methods": [
            {
                "method": row.variant.method,
                "digest": row.variant.digest,
                "command": row.variant.command(seeds := [run.seed for run in row.variant.runs]),
                "settings": list(row.settings),
                "seeds": seeds,
                "bound": row.bound,
                **{name: _numbers(name, estimate) for name, estimate in row.estimates.items()},
            }
            for row in comparison.rows
        ],
    }


def _numbers(name: str, estimate: Estimate) -> dict[str, Any]:
    numbers: dict[str, Any] = {"mean": estimate.value.mean, "sd": estimate.value.sd}
    if MEASURES[name].better:
        low, high = estimate.interval or (None, None)
        numbers |= {"best": VERDICTS[estimate.mark], "difference": estimate.difference}
        numbers |= {"low": low, "high": high, "paired": estimate.paired}
    return numbers


def _csv(compared: Compared) -> str:
    """The records, a line for each method. Lists become words, and missing values are empty."""
    lines = [
        _flat({"benchmark": comparison["benchmark"], "stream": comparison["stream"], **method})
        for comparison in map(as_json, compared.comparisons)
        for method in comparison["methods"]
    ]
    return csv_text([lines[0], *(line.values() for line in lines)])


def _flat(method: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for key, value in method.items():
        if isinstance(value, dict):
            cells |= {key if part == "mean" else f"{key}_{part}": number for part, number in value.items()}
        elif isinstance(value, list):
            cells[key] = not_a_formula(", ".join(map(str, value)))
        else:
            cells[key] = not_a_formula(value) if isinstance(value, str) else value
    return cells


def comparison_text(compared: Compared, form: str) -> str:
    """All comparisons as "markdown", "latex", "json" or "csv"."""
    if form == "json":
        left_out = [damaged._asdict() for damaged in compared.reading.damaged]
        content = {"comparisons": [as_json(each) for each in compared.comparisons], "damaged": left_out}
        return to_json(content, indent=2).decode()
    if form == "csv":
        return _csv(compared)
    return "\n".join(_document(comparison_grid(each), form) for each in compared.comparisons)


def _document(grid: Grid, form: str) -> str:
    from .page import escape_markdown, render

    table = render(f"table.{FORMATS[form]}.jinja", grid=grid)
    if form == "latex":
        return table + "".join(f"% {remark}\n" for remark in grid.remarks)
    remarks = "".join(f"\n{escape_markdown(remark)}\n" for remark in grid.remarks)
    return f"## {escape_markdown(grid.title)}\n\n{table}{remarks}"


def save_comparison(compared: Compared, folder: Path) -> list[Path]:
    """Writes the table in every format, and a picture of each stream as SVG, PDF and PNG. Returns their paths."""
    from .figures import comparison_drawing

    contents = {f"comparison.{ending}": comparison_text(compared, form).encode() for form, ending in FORMATS.items()}
    for comparison in compared.comparisons:
        name = slug(comparison.benchmark, *comparison.stream)
        contents |= {f"{name}.{ending}": data for ending, data in comparison_drawing(comparison).render().items()}
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        write(folder / name, data)
    return [folder / name for name in contents]


def comparison_rows(comparison: Comparison) -> tuple[str, list[dict[str, str]], tuple[str, ...]]:
    """The title, the cells by heading and the remarks, for a terminal, which may lack a true minus sign."""
    grid = comparison_grid(comparison)
    headings = [column.heading for column in grid.columns]
    rows = [dict(zip(headings, (str(cell).replace("−", "-") for cell in row), strict=True)) for row in grid.rows]
    return grid.title, rows, grid.remarks
