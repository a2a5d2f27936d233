"""The docs point at what exists: links, headings, pages in the menu, and the functions of each equation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "remnant"
REPOSITORY = "https://github.com/remnant-learning/remnant/"
PAGES = [
    *sorted(DOCS.glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        own = re.sub(f"^{REPOSITORY}(raw|blob)/main/", "", link)
        target, _, anchor = own.partition("#")
        if "://" in own or link.startswith("mailto:"):
            continue
        file = (ROOT if own != link else page.parent) / target if target else page
        if not file.exists():
            yield f"{page.relative_to(ROOT)}: {link} does not exist"
        elif anchor and anchor not in anchors(file):
            yield f"{page.relative_to(ROOT)}: {link} has no such heading"


def test_links_lead_somewhere() -> None:
    broken = [each for page in PAGES for each in broken_links(page)]
    assert not broken, "\n".join(broken)


def test_pages_of_the_site_link_within_it() -> None:
    outside = [
        f"{page.name}: {link}"
        for page in DOCS.glob("*.md")
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))
        if link.startswith("../")
    ]
    assert not outside, "mkdocs cannot follow these: " + ", ".join(outside)


def test_images_of_the_readme_also_show_elsewhere() -> None:
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert images
    assert all(image.startswith(f"{REPOSITORY}raw/main/") for image in images)


def test_the_menu_has_every_page_once() -> None:
    menu = re.findall(
        r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1], re.MULTILINE
    )
    assert sorted([*menu, "results-notes.md", "frontier-notes.md"]) == sorted(page.name for page in DOCS.glob("*.md"))


def defined(file: Path) -> set[str]:
    """Functions, classes and methods of a file: `grow`, `Subspace`, `Subspace.grow`."""
    kinds = ast.FunctionDef | ast.ClassDef
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, kinds):
            found |= {node.name, *(f"{node.name}.{part.name}" for part in node.body if isinstance(part, kinds))}
    return found


def equations() -> list[tuple[str, str, str]]:
    """(equation, file, function) as docs/equations.md has them."""
    rows = re.findall(
        r"^\| (.*?) \|.*\| `(\S+\.py)` \| (.+?) \|$", (DOCS / "equations.md").read_text("utf-8"), re.MULTILINE
    )
    return [(paper, file, name) for paper, file, names in rows for name in re.findall(r"`([\w.]+)`", names)]


@pytest.mark.parametrize(("paper", "file", "name"), equations())
def test_each_equation_is_where_the_docs_say(paper: str, file: str, name: str) -> None:
    assert (SOURCE / file).is_file(), f"{paper}: there is no {file}"
    assert name in defined(SOURCE / file), f"{paper}: {file} has no {name}"


def test_the_equations_include_those_of_the_method() -> None:
    papers = " ".join(paper for paper, _, _ in equations())
    assert len(equations()) >= 12
    assert all(f"Eq. {number}" in papers for number in (1, 4, 5, 6, 8, 9, 10, 11))


def test_files_named_in_the_docs_exist() -> None:
    """Paths such as `memory/steps/attachment.py` or `experiments/runs/` in the pages that explain the code."""
    missing = []
    for page in ("equations.md", "one-step.md", "adding-a-layer.md"):
        for path in re.findall(r"`(?:src/remnant/)?([a-z_]+/[\w/]*(?:\.py)?)`", prose(DOCS / page)):
            if not (SOURCE / path).exists() and not (ROOT / path).exists():
                missing.append(f"{page}: {path}")
    assert not missing, ", ".join(missing)
