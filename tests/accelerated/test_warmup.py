"""A warm-up compiles and loads all that the first step needs, and changes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remnant.accelerated import cuda_graph, fuse_activations
from remnant.accelerated.cuda_graph import warm_up
from remnant.models import MODELS, Network, build

NORMED = {"alexnet": {"norm": "batch"}, "resnet18": {"norm": "batch"}}


@pytest.mark.parametrize("name", MODELS)
def test_the_convolutions_of_every_network_can_be_warmed_up(name: str) -> None:
    network = build(name, input_shape=(3, 32, 32), classes=[10], seed=0, **NORMED.get(name, {}))
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    seen: list[object] = []
    for module in network.modules():
        module.register_forward_hook(lambda *what: seen.append(what))
    with torch.no_grad():
        cuda_graph._convolve(network, torch.device("cpu"))
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    assert not seen  # a method's hooks would mistake it for an input


def test_on_a_cpu_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "_warmed_up", set())
    warm_up(build("mlp", input_shape=(4,), classes=2))
    warm_up(torch.nn.ReLU())  # has no parameters, so no device
    assert not cuda_graph._warmed_up


def alexnet() -> Network:
    network = build("alexnet", input_shape=(3, 32, 32), classes=[10], seed=0, norm="batch").cuda()
    fuse_activations(network)
    return network


@pytest.mark.gpu
def test_it_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "_warmed_up", set())
    before = torch.cuda.get_rng_state()
    warm_up(alexnet())
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.gpu
def test_it_ignores_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def fails(*what: object) -> None:
        tried.append(what)
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(cuda_graph, "_warmed_up", set())
    for job in ("_normalise", "_convolve"):
        monkeypatch.setattr(cuda_graph, job, fails)
    warm_up(alexnet())
    assert len(tried) == 3


STEP = """
import os, torch
from pathlib import Path
from remnant.accelerated import fuse_activations
from remnant.accelerated.cuda_graph import warm_up
from remnant.models import build

network = build("alexnet", input_shape=(3, 32, 32), classes=[10], seed=0, norm="batch")
network.to(memory_format=torch.channels_last).cuda()
fuse_activations(network)
warm_up(network)
compiled = lambda: len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))
print(compiled())
for rows in (64, 14):
    network(torch.randn(rows, 3, 32, 32, device="cuda"), 0).sum().backward()
print(compiled())
"""


@pytest.mark.gpu
def test_a_step_then_compiles_nothing_more(tmp_path: Path) -> None:
    """In a new process, which has compiled nothing yet. The last batch of an epoch is smaller."""
    here = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", STEP], env=here, capture_output=True, text=True, check=True)
    before, after = (int(line) for line in done.stdout.split())
    assert before == after == 6
