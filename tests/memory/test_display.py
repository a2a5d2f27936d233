"""A memory shows itself as a short table, in a terminal and in a notebook."""

from __future__ import annotations

from small_net import Net
from torch import nn

from remnant import GPM


def test_repr_is_the_table_of_the_report(memory: GPM, net: Net) -> None:
    first, *rest = repr(memory).split("\n")
    assert first == "GPM of Net"
    assert "\n".join(rest) == str(memory.report())


def test_a_deep_model_shows_its_first_layers() -> None:
    memory = GPM(nn.Sequential(*[nn.Linear(2, 2) for _ in range(50)]))
    shown = repr(memory)
    assert shown.count("\n") < 30
    assert "… and 30 more" in shown
    assert "0 tasks remembered" in shown


def test_a_notebook_shows_an_html_table(memory: GPM) -> None:
    page = memory._repr_html_()
    assert page.count("<tr>") == 1 + len(memory.report().layers)
    assert "<td>hidden</td>" in page
    assert "<th>layer</th>" in page
    assert "1 task remembered" in page


def test_names_are_escaped() -> None:
    page = GPM(nn.ModuleDict({"<b>": nn.Linear(2, 2)}))._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<td><b>" not in page
