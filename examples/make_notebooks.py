"""Turns examples with `# %%` cells into executed notebooks beside them: python examples/make_notebooks.py

Needs `pip install nbclient ipykernel`.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("own_cnn", "read_run")


def cells(source: str) -> list[tuple[str, str]]:
    """The cells of a script as ("code" or "markdown", text)."""
    found = []
    for kind, text in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", source, re.MULTILINE | re.DOTALL):
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE) if kind else text
        found.append(("markdown" if kind else "code", text.strip()))
    return found


def make(name: str) -> Path:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    makers = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    for number, (kind, text) in enumerate(cells((HERE / f"{name}.py").read_text(encoding="utf-8"))):
        notebook.cells.append(makers[kind](text, id=f"cell-{number}"))
    NotebookClient(notebook, record_timing=False, resources={"metadata": {"path": HERE}}).execute()
    path = HERE / f"{name}.ipynb"
    text = nbformat.writes(notebook)
    path.write_text(re.sub(r"/[^ \"]*/ipykernel_\d+/\d+\.py", "cell", text) + "\n", encoding="utf-8")  # of this machine
    return path


if __name__ == "__main__":
    for name in NAMES:
        print(path := make(name), f"{path.stat().st_size / 1000:.0f} kB")
