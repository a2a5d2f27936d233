"""Errors while a run is built: for the user's own file they give the line, otherwise the settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from remnant.errors import RunError, UserError
from remnant.experiments import Plan, resolve, run
from remnant.experiments.execute import build_method

CPU = torch.device("cpu")
BROKEN = """from remnant.methods import Method
from remnant.models import MLP

class Plain(Method):
    name = "plain"

    def __init__(self, network, *, lr: float = 0.1) -> None:
        super().__init__(network, lr=lr)
        self.scale = 1 / (lr - 0.1)

class Net(MLP):
    def __init__(self, input_shape, classes) -> None:
        super().__init__(input_shape, classes, hidden=[{}["width"]])

def stream(seed):
    return [][seed]
"""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Plain", r"Plain could not be built: ZeroDivisionError: .* \(mine\.py, line 9\)\.$"),
        ("Net", r"Net could not be built: KeyError: 'width' \(mine\.py, line 13\)\.$"),
        ("stream", r"stream could not be built: IndexError: .* \(mine\.py, line 16\)\.$"),
    ],
)
def test_an_error_in_the_users_file_gives_its_line(name: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    mine = f"{tmp_path / 'mine.py'}:{name}"
    settings = resolve(
        mine if name == "stream" else "permuted-digits",
        mine if name == "Plain" else "finetune",
        [f"network.name={mine}"] if name == "Net" else [],
    )
    with pytest.raises(RunError, match=error):
        build_method(settings, 0, CPU)


def test_a_rate_that_falls_over_all_epochs_does_not_go_with_early_stopping() -> None:
    stopping = ("training.patience=2", "training.factor=2", "training.lr_min=0.01")
    build_method(resolve("permuted-digits", "gpm", stopping), 0, CPU)
    with pytest.raises(
        RunError, match=r"training\.patience stops early\. Use only one of them: add --set training\.patience"
    ):
        build_method(resolve("permuted-digits", "gpm", (*stopping, "anneal=true")), 0, CPU)


def test_settings_that_do_not_fit_each_other_name_the_run() -> None:
    settings = resolve("permuted-digits", "finetune", ["network.name=alexnet"])
    with pytest.raises(RunError, match="finetune on permuted-digits: AlexNet cannot take images of 8×8"):
        build_method(settings, 0, CPU)


OWN = """import sys
import torch
from remnant.data import Stream

def made(x, **options):
    return Stream.from_arrays([(x, torch.arange(len(x)) % 2)] * 2, **options)

def tokens(seed):
    return made(torch.zeros(20, 8, dtype=torch.int64))

def leaves(seed):
    sys.exit(0)

def huge(seed):
    return made(torch.zeros(1).expand(20, 10**10))

def endless(seed):
    return made(torch.rand(20, 8), classes=10**10)

class Leaving(torch.utils.data.Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return (torch.zeros(8), 0) if index == 0 else sys.exit(0)

def leaves_later(seed):
    return Stream.from_datasets([Leaving()] * 2, [Leaving()] * 2, classes=2)
"""


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize("seeds", [(0,), (0, 1)], ids=["in this process", "in children"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tokens", "mlp cannot take inputs of torch.int64 and shape .8,"),
        ("leaves", r"could not be built: SystemExit: 0 \(mine\.py, line 12\)"),
        ("leaves_later", r"could not be built: SystemExit: 0 \(mine\.py, line 24\)"),
        ("huge", "huge needs more memory than this machine has"),
        ("endless", "A head of 10,000,000,000 classes is too large"),
    ],
)
def test_a_stream_that_cannot_run_gives_a_sentence_and_leaves_no_folder(
    name: str, sentence: str, seeds: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    plan = Plan(resolve(f"{tmp_path / 'mine.py'}:{name}", "gpm"), seeds, tmp_path / "runs", device="cpu")
    with pytest.raises(UserError, match=sentence):
        run(plan)
    assert not list((tmp_path / "runs").rglob("seed*"))


def test_a_file_that_exits_is_an_error_whatever_its_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match="could not be run: SystemExit: 0"):
        run(Plan(resolve(f"{tmp_path / 'mine.py'}:stream", "gpm"), (0,), tmp_path / "runs", device="cpu"))


def test_a_network_is_refused_before_its_weights_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 100)  # 400 kB
    build_method(resolve("permuted-digits", "finetune"), 0, CPU)
    with pytest.raises(RunError, match="mlp needs more memory"):
        build_method(resolve("permuted-digits", "finetune", ["network.hidden=[500, 500]"]), 0, CPU)


NETWORKS = """from torch import nn
from remnant.models import Network

class Recurrent(Network):
    def __init__(self, input_shape, classes, *, width: int = 6) -> None:
        super().__init__(input_shape, classes)
        self.gru = nn.GRU(8, width, batch_first=True)
        self.attach_heads(width, bias=True)

    def features(self, x):
        return self.gru(x.reshape(len(x), 8, 8))[0][:, -1]

class Mistaken(Network):
    def __init__(self, input_shape, classes) -> None:
        super().__init__(input_shape, classes)
        self.body = nn.Linear(64, 32)
        self.attach_heads(3, bias=True)

    def features(self, x):
        return self.body(x.flatten(1))

class Failing(Mistaken):
    def features(self, x):
        return self.body(x[:, :5].flatten(1)[:, :7])
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Mistaken", r"`features` returns \(2, 32\) for 2 inputs, where `attach_heads` was told 3 features"),
        ("Failing", r"cannot take inputs of torch.float32 and shape .* \(nets\.py, line 24\)\). Change its `features`"),
        ("Recurrent", r"no rule covers it.*With `remnant run`, write --set unsupported=freeze"),
    ],
)
def test_a_network_of_ones_own_that_cannot_run_is_refused_on_a_built_in_stream(
    name: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    settings = resolve("permuted-digits", "gpm", [f"network.name={tmp_path / 'nets.py'}:{name}"])
    with pytest.raises(RunError, match=says):
        build_method(settings, 0, CPU)


@pytest.mark.parametrize("change", ["unsupported=freeze", 'exclude=["gru.*"]'])
def test_parameters_that_no_rule_covers_can_be_frozen_or_excluded_by_settings(change: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    network = f"network.name={tmp_path / 'nets.py'}:Recurrent"
    _, method = build_method(resolve("permuted-digits", "gpm", [network, change]), 0, CPU)
    report = method.memory.report()
    assert ("gru.weight_hh_l0" in report.frozen) == ("freeze" in change)
    assert ("gru.weight_hh_l0" in report.free) == ("exclude" in change)


def test_a_network_that_assumes_a_memory_layout_is_refused_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        """from torch import nn
from remnant.models import Network

class Viewing(Network):
    def __init__(self, input_shape, classes) -> None:
        super().__init__(input_shape, classes)
        self.body = nn.Conv2d(1, 4, 3)
        self.attach_heads(144, bias=True)

    def features(self, x):
        x = self.body(x)
        return x.view(len(x), -1)

class Volume(Network):
    def __init__(self, input_shape, classes) -> None:
        super().__init__(input_shape, classes)
        self.body = nn.Conv3d(1, 4, (1, 3, 3))
        self.attach_heads(144, bias=True)

    def features(self, x):
        return self.body(x[:, None]).flatten(1)
"""
    )
    viewing, volume = (
        resolve("permuted-digits", "gpm", [f"network.name={tmp_path / 'nets.py'}:{name}"])
        for name in ("Viewing", "Volume")
    )
    with pytest.raises(RunError, match=r"view size is not compatible .* \(nets\.py, line 12\)"):
        build_method(viewing, 0, CPU)
    build_method(volume, 0, CPU)
