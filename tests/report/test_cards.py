"""The cards: which method is best, by how much, and how certain that is."""

from __future__ import annotations

from pathlib import Path

from made_up import run, settings

from remnant.report.content import make_content


def card(root: Path) -> list[str]:
    (found,) = make_content([root]).cards.values()
    return found


def two(root: Path, ours: list[float], theirs: list[float]) -> list[str]:
    for method, accs in (("gpm", ours), ("finetune", theirs)):
        for seed, acc in enumerate(accs):
            run(root, settings("pmnist", method), seed, (acc, acc))
    return card(root)


def test_a_clear_lead_is_settled(tmp_path: Path) -> None:
    winner, margin, certainty, _ = two(tmp_path, [0.94, 0.95, 0.93], [0.60, 0.61, 0.62])
    assert winner == "GPM, 94.00 ± 1.00 % (3 seeds)."
    assert margin == "33.00 points ahead of Fine-tuning (61.00 ± 1.00 %)."
    assert certainty.startswith("Settled: the 95 % interval of the difference is 30.7")


def test_a_lead_within_the_noise_is_not(tmp_path: Path) -> None:
    certainty = two(tmp_path, [0.94, 0.90, 0.92], [0.93, 0.91, 0.90])[2]
    assert certainty.startswith("Not settled: the 95 % interval of the difference is −")


def test_one_seed_is_not_certain(tmp_path: Path) -> None:
    assert two(tmp_path, [0.94], [0.60, 0.61])[2] == "One seed: cannot say how sure."


def test_joint_training_bounds_and_does_not_win(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), 0, (0.90, 0.90))
    run(tmp_path, settings("pmnist", "multitask"), 0, (0.97, 0.97))
    found = card(tmp_path)
    assert (found[0], found[-1]) == ("GPM, 90.00 % (one seed).", "Joint training: 97.00 %.")


def test_the_papers_figure_is_shown_only_for_the_recipes_settings(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm", ["training.epochs=1"]), 0, (0.90, 0.90))
    assert card(tmp_path)[-1] == "With training.epochs=1."
    run(tmp_path, settings("pmnist", "gpm"), 0, (0.80, 0.80))
    assert card(tmp_path)[-1] == "Paper: 93.91 ± 0.16 %; ours is worse."


def test_only_unfinished_runs_win_nothing(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), finished=False)
    assert card(tmp_path) == ["No finished run yet (1 unfinished)."]
