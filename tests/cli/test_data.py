"""`remnant data`: its output and its exit codes."""

import gzip
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.data import load_dataset
from remnant.data.sets import sources

runner = CliRunner()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "store"


@pytest.fixture
def originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The four files of an MNIST of 20 + 10 images, accepted as complete."""
    entry = replace(sources.SOURCES["mnist"], counts=((20, 10),))
    monkeypatch.setitem(sources.SOURCES, "mnist", entry)
    folder = tmp_path / "raw"
    folder.mkdir()
    for prefix, count in (("train", 20), ("t10k", 10)):
        images = np.zeros((count, 28, 28), np.uint8)
        head = struct.pack(">4B3I", 0, 0, 8, 3, *images.shape)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes())
    return folder


def test_status_lists_every_set_and_how_to_get_one(root: Path) -> None:
    result = runner.invoke(app, ["data", "status"])
    assert result.exit_code == 0
    for name in (*sources.SOURCES, "digits"):
        assert name in result.output
    assert str(root) in result.output
    assert "remnant data fetch NAME" in result.output


def test_add_prepares_a_set_which_status_then_calls_ready(originals: Path) -> None:
    result = runner.invoke(app, ["data", "add", "mnist", str(originals)])
    assert result.exit_code == 0, result.output
    assert "mnist is ready" in result.output
    assert load_dataset("mnist").arrays["train_labels"].tolist() == list(range(10)) * 2
    line = next(line for line in runner.invoke(app, ["data", "status"]).output.splitlines() if line.startswith("mnist"))
    assert "ready" in line
    assert "20" in line


def test_status_tells_of_a_damaged_file(originals: Path, root: Path) -> None:
    runner.invoke(app, ["data", "add", "mnist", str(originals)])
    (root / "mnist.npz").write_bytes(b"PK torn")
    result = runner.invoke(app, ["data", "status"])
    assert "damaged" in result.output
    assert "Remove it and prepare the dataset again" in result.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["add", "mnits", "."], "Did you mean 'mnist'?"),
        (
            ["add", "mnist", "no/such/folder"],
            "no/such/folder does not exist. 'mnist' needs a folder with train-images",
        ),
        (["fetch", "cifar-10"], "Did you mean 'cifar10'?"),
        (["fetch", "digits"], "comes with scikit-learn"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr_and_code_1(command: list[str], words: str, root: Path) -> None:
    result = runner.invoke(app, ["data", *command])
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not root.exists()


def test_fetch_offline_says_which_file_to_put_where(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = sources.RemoteFile("train.gz", ("http://127.0.0.1:9/train.gz",), "0" * 32)
    monkeypatch.setitem(sources.SOURCES, "mnist", replace(sources.SOURCES["mnist"], files=(nowhere,)))
    result = runner.invoke(app, ["data", "fetch", "mnist"])
    assert result.exit_code == 1
    assert "'train.gz' of 'mnist' could not be downloaded" in result.stderr
    assert str(root / "downloads" / "mnist") in result.stderr


@pytest.mark.parametrize("command", [["data", "fetch"], ["data", "nonsense"], ["data", "add", "mnist"], ["nonsense"]])
def test_wrong_usage_is_code_2(command: list[str]) -> None:
    assert runner.invoke(app, command).exit_code == 2


def test_without_typer_the_command_says_what_to_install() -> None:
    script = (
        "import sys\n"
        "sys.modules['typer'] = None\n"  # makes `import typer` fail as if it were not installed
        "from remnant.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "pip install typer rich scikit-learn filelock" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_does_not_load_the_data_room() -> None:
    script = "import sys\nfrom remnant import cli\nassert 'remnant.data' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)
