"""A report reads run folders and never runs a user's file."""

from pathlib import Path

from made_up import run

from remnant.experiments.settings import Settings, resolve
from remnant.report import write_report


def test_a_report_does_not_run_the_file_of_a_method(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('the file ran')")
    content = {**resolve("permuted-digits", "finetune").as_dict(), "method": f"{tmp_path / 'own.py'}:Own"}
    run(tmp_path / "runs", Settings.from_dict(content), 0)
    assert len(write_report([tmp_path / "runs"], tmp_path / "report", None).collection.reading.runs) == 1
