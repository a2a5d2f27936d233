"""Figures depend only on their data, and show nothing that was not measured."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up import HOSTILE, MLP_RANKS, histogram, run, settings

from remnant.experiments.paper import save_timings
from remnant.report.content import Content, make_content
from remnant.report.figures import Drawing, digest_of
from remnant.report.figures.drawing import MARKERS, look, styled
from remnant.report.figures.methods import method_look
from remnant.report.names import TEXTS
from remnant.report.records import read_runs
from remnant.report.variants import collect

TIMES = {"gpm": 2.0, "ewc": 8.0}
SVG = "{http://www.w3.org/2000/svg}"


def drawing(content: Content, begins: str) -> Drawing:
    return next(found for name, found in content.drawings.items() if name.startswith(begins))


def test_all_figures_are_there(content: Content) -> None:
    drawn = {name for name, drawings in content.sections.items() if drawings}
    assert drawn == {"first-task", "trade-off", "ranks", "memory", "epoch-time", "interference"}


def test_the_same_data_gives_the_same_bytes(content: Content) -> None:
    found = drawing(content, "first-task")
    assert found.render() == found.render()


def test_a_file_carries_the_digest_of_its_data(content: Content) -> None:
    found = drawing(content, "trade-off")
    files = found.render()
    assert files["png"].startswith(b"\x89PNG")
    assert files["pdf"].startswith(b"%PDF")
    assert b"/Type3" not in files["pdf"]  # journals refuse such fonts
    assert digest_of(files["svg"].decode()) == found.digest
    other = replace(found, data={"points": [{**p, "la": p["la"] + 0.01} for p in found.data["points"]]})
    assert other.digest != found.digest


@pytest.mark.parametrize("begins", ["trade-off-pmnist", "first-task-pmnist", "memory-pmnist", "threshold-", "ranks-"])
def test_svg_is_valid_accessible_and_follows_the_colours_of_the_page(content: Content, begins: str) -> None:
    found = drawing(content, begins)
    svg = found.render()["svg"].decode()
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == found.alt
    assert "currentColor" in svg
    assert "prefers-color-scheme:dark" in svg
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    assert all(str(name).startswith(found.name) for name in ids)
    assert not [element for element in root.iter() if element.tag not in {f"{SVG}{t}" for t in TAGS}]


TAGS = ("svg", "style", "defs", "g", "path", "use", "text", "clipPath", "rect", "image", "tspan")


def test_a_name_is_text_in_a_figure(content: Content) -> None:
    svg = drawing(content, "first-task-pmnist").render()["svg"].decode()
    assert f"{HOSTILE[:17]}… * (one seed)" in [
        element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]


def test_thresholds_keep_their_digits(content: Content) -> None:
    svg = drawing(content, "interference-").render()["svg"].decode()
    words = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"ε = 0.95", "ε = 0.985"} <= set(words)


def test_runs_that_differ_only_in_epsilon_are_a_sweep(tmp_path: Path) -> None:
    def interference(*overrides: list[str]) -> list[str]:
        for words in overrides:
            run(tmp_path, settings("split-cifar100", "gpm", words), 0, drift={"fc2": histogram(1.0)})
        return [found.name.split("-")[0] for found in make_content([tmp_path]).sections["interference"]]

    assert interference(["threshold.start=0.9"]) == []
    assert interference(["threshold.start=0.95", "lr=0.02"]) == []
    assert interference(["threshold.start=0.99"]) == ["threshold", "interference"]


def test_histograms_of_seeds_add_up_where_their_edges_agree(tmp_path: Path) -> None:
    for eps in (0.9, 0.95):
        for seed in (0, 1):
            chosen = settings("split-cifar100", "gpm", [f"threshold.start={eps}"])
            run(tmp_path, chosen, seed, drift={"fc2": {"edges": [0, 1, 3], "counts": [seed, 2 - seed]}})
    lines = drawing(make_content([tmp_path]), "interference").data["lines"]
    assert [line["density"] for line in lines] == [[0.25, 0.375]] * 2  # 1 and 3 of 4, in bins 1 and 2 wide


def test_histograms_of_seeds_add_up_where_one_is_finer(tmp_path: Path) -> None:
    seeds = (
        {"edges": [-1, 0, 1], "counts": [1, 2]},  # half as far as the next, in bins half as wide
        {"edges": [-2, 0, 2], "counts": [3, 2]},
        {"edges": [-1.5, 0.5, 1.5], "counts": [9, 9]},  # its first bin lies in two of the others': left out
    )
    for eps in (0.9, 0.95):
        for seed, made in enumerate(seeds):
            run(tmp_path, settings("split-cifar100", "gpm", [f"threshold.start={eps}"]), seed, drift={"fc2": made})
    lines = drawing(make_content([tmp_path]), "interference").data["lines"]
    assert [(line["edges"], line["density"]) for line in lines] == [([-2, 0, 2], [0.25, 0.25])] * 2  # 4 and 4 of 8


def test_times_of_two_devices_are_not_compared(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), device="A")
    run(tmp_path, settings("pmnist", "finetune"), device="B")
    assert make_content([tmp_path]).sections["epoch-time"] == []
    run(tmp_path, settings("pmnist", "single-task"), device="A", seconds=20.0)
    (found,) = make_content([tmp_path]).sections["epoch-time"]
    assert [(row["method"], row["value"]) for row in found.data["rows"]] == [("gpm", 0.5), ("single-task", 1.0)]
    assert found.data["rows"][0]["seconds"] == 10.0 / (3 * 5)  # three tasks of five epochs


def test_methods_timed_alike_take_precedence_over_times_of_runs(tmp_path: Path) -> None:
    for method in ("gpm", "finetune"):
        run(tmp_path, settings("pmnist", method))
    (of_runs,) = make_content([tmp_path]).sections["epoch-time"]
    assert "no comparison of methods" in of_runs.remark
    one = {name: {"digest": settings("pmnist", name).digest, "epochs": [s], "finish": 0.0} for name, s in TIMES.items()}
    other = {"digest": "00000000", "epochs": [9.0], "finish": 0.0}  # not the recipe's
    save_timings(tmp_path, "pmnist", {"environment": {"device": "B"}, "methods": {**one, "er": other}})
    (timed,) = make_content([tmp_path]).sections["epoch-time"]
    assert [(row["method"], row["value"]) for row in timed.data["rows"]] == [("gpm", 0.25), ("ewc", 1.0)]
    assert "on B" in timed.title
    assert "no comparison" not in timed.remark


def test_epochs_of_early_stopping_are_counted_and_never_guessed(tmp_path: Path) -> None:
    for method, epochs in (("gpm", 4), ("finetune", 8), ("single-task", 0)):
        run(tmp_path, settings("split-cifar100", method), epochs=epochs)
    (found,) = make_content([tmp_path]).sections["epoch-time"]
    assert [(row["method"], row["seconds"]) for row in found.data["rows"]] == [("gpm", 2.5), ("finetune", 1.25)]


def test_memory_is_relative_to_gpm_max(content: Content) -> None:
    rows = {row["method"]: row["value"] for row in drawing(content, "memory-pmnist").data["rows"]}
    assert rows["gpm"] == pytest.approx(800_000 / (4 * (784**2 + 2 * 100**2)))
    assert rows["finetune"] == 0.0


def test_capacities_are_the_papers(tmp_path: Path) -> None:
    for benchmark in ("pmnist", "split-cifar100", "five-datasets", "cifar100-superclass", "split-miniimagenet"):
        run(tmp_path, settings(benchmark, "gpm"))
    found = {v.benchmark: v for v in collect(read_runs([tmp_path])).variants}
    assert list(found["pmnist"].capacities.values()) == [784, 100, 100]
    assert list(found["split-cifar100"].capacities.values()) == [48, 576, 512, 1024, 2048]
    for benchmark in ("five-datasets", "split-miniimagenet"):
        assert round(found[benchmark].gpm_max_bytes / 4e6, 2) == 8.98


def test_shapes_are_those_of_the_streams() -> None:
    from remnant.data import BENCHMARKS, BUILT_IN, load_stream

    assert set(BUILT_IN) == set(BENCHMARKS)
    for name in ("permuted-digits", "digits-incremental"):
        stream, declared = load_stream(name), BUILT_IN[name]
        assert (declared.input_shape, declared.head) == (stream.input_shape, stream.head)


def test_ranks_of_an_unknown_stream_are_not_drawn(tmp_path: Path) -> None:
    run(tmp_path, settings("my/own.py:stream", "gpm"), ranks=MLP_RANKS)
    assert make_content([tmp_path]).sections["ranks"] == []


def test_settings_that_are_not_the_recipes_are_starred(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm", ["lr=0.5"]))
    run(tmp_path, settings("pmnist", "finetune"))
    content = make_content([tmp_path])
    for begins in ("first-task", "trade-off", "memory", "epoch-time"):
        found = drawing(content, begins)
        assert "GPM *" in str(found.data)
        assert found.remark.startswith("* Not the recipe's settings. GPM: lr=0.5.")
    assert "lr=0.5" in " ".join(content.cards["pmnist"])


def test_no_two_methods_look_alike() -> None:
    looks = [method_look(method) for method in TEXTS["methods"]]
    assert len({(own["color"], own["marker"]) for own in looks}) == len(looks)
    assert len({(own["color"], own["marker"]) for own in map(look, range(77))}) == 77
    assert len(MARKERS) == 11


def test_bars_far_apart_have_plain_numbers_on_their_axis(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), memory_bytes=1000)
    run(tmp_path, settings("pmnist", "finetune"), memory_bytes=100_000_000)
    run(tmp_path, settings("pmnist", "multitask"), memory_bytes=0)
    svg = drawing(make_content([tmp_path]), "memory").render()["svg"].decode()
    words = [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"0.00039, paper 0.69", "39.39"} <= set(words)  # the number is not on the paper's mark
    assert "keeps nothing" in words  # though such an axis has no zero
    assert not any("$" in word for word in words)


def test_a_single_seed_is_marked_where_deviations_are_drawn(content: Content, tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"))
    for seed in (0, 1):
        run(tmp_path, settings("pmnist", "finetune"), seed)
    alone = make_content([tmp_path])
    for begins, part in (("first-task", "lines"), ("trade-off", "points")):
        assert [each["title"] for each in drawing(alone, begins).data[part]] == ["GPM (one seed)", "Fine-tuning"]
    assert drawing(content, "threshold").remark == "One seed at each ε."


def test_no_word_is_cut_off_at_the_edge(content: Content, tmp_path: Path) -> None:
    convs = [f"stage{s}.{b}.conv{c}" for s in (1, 2, 3, 4) for b in (0, 1) for c in (1, 2)]
    half = 0.8003 / 3**0.5  # three root mean squares are 0.8003 then, and the last tick may be just inside
    drift = {"stem": {"edges": [-1.5 * half, -half / 2, half / 2, 1.5 * half], "counts": [1.0, 4.0, 1.0]}}
    for eps in (0.95, 0.96):
        chosen = settings("five-datasets", "gpm", [f"threshold={eps}"])
        run(tmp_path, chosen, ranks={layer: [9, 20] for layer in ("stem", *convs)}, drift=drift)
    for found in (*content.drawings.values(), *make_content([tmp_path]).drawings.values()):
        with styled():
            figure = found.draw(found.data)
            figure.savefig(StringIO(), format="svg")
            figure.set_layout_engine("none")
            box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.005, found.name


def test_histograms_differ_in_more_than_colour(content: Content) -> None:
    found = drawing(content, "interference")
    with styled():
        steps = found.draw(found.data).axes[0].patches
    assert len({str(step.get_linestyle()) for step in steps}) == len(steps) == 2
