"""Captured steps end with the same weights as eager ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from replaying import POOL, Graph

from remnant.accelerated.cuda_graph import CapturedSteps, _steps_per_graph
from remnant.data import Split
from remnant.methods import METHODS
from remnant.models import build
from remnant.training import EagerSteps, RandomState, run_to_completion
from small_options import announced

OPTIONS = {
    "gpm": {"threshold": {"value": 0.9}, "samples": 50},
    "sgp": {"threshold": {"value": 0.9}, "samples": 50},
    "trgp": {"threshold": {"value": 0.9}, "samples": 50, "trust": 0.1},
    "dfsgp": {"threshold": {"value": 0.9}, "samples": 50},
    "dftrgp": {"threshold": {"value": 0.9}, "samples": 50, "trust": 0.1},
    "ewc": {"strength": 10.0},
    "hat": {"s_max": 10.0},  # with 400, a hundred steps amplify even float64's rounding beyond any bound
    "er": {"memory": 100},
    "agem": {"memory": 200, "memory_batch": 64},
    "gem": {"memory": 200},
    "mega-i": {"memory": 200, "memory_batch": 64},
    "mega-ii": {"memory": 200, "memory_batch": 64},
    "mer": {"memory": 100, "memory_batch": 32, "at_once": 16},
    "icarl": {"memory": 100},
    "ogd": {"samples": 20},
    "owm": {"alpha_start": {"*": 1.0}, "alpha_decay": {"*": 0.01}},
}


@pytest.mark.parametrize(("steps", "length"), [(5400, 60), (74, 8), (37, 6), (1, 1), (0, 1), (128, 8), (742, 19)])
def test_an_epoch_takes_few_graphs_and_few_captured_steps(steps: int, length: int) -> None:
    assert _steps_per_graph(steps) == length


@pytest.mark.parametrize("network", ["mlp", "alexnet"])
@pytest.mark.parametrize("method", ["gpm", "sgp", "trgp", "dfgpm", "dftrgp", "wsn", "code-cl", "rogo", "cuber", "api"])
def test_steps_of_projection_methods_can_be_captured(
    method: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a graph that records on a CPU. It cannot draw random numbers, so there is no mixup and no dropout."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    shape, small = (
        ((12,), {"hidden": (10, 9)}) if network == "mlp" else ((3, 19, 19), {"width": 2, "dropout": (0.0, 0.0)})
    )
    data = Split.of(torch.randn(44, *shape, dtype=torch.float64), torch.randint(0, 3, (44,)))
    options = {} if method == "wsn" else {"threshold": {"value": 0.8}}
    options |= {"room": 5, "aim": 1.0} if method == "api" else {}
    options |= {"free": 3, "alike": 0.0} if method == "code-cl" else {}
    options |= {"trust": 0.1} if "trgp" in method or method == "cuber" else {}
    options |= {"mixup_weight": 0.0} if method.startswith("df") else {}
    ends = []
    for kind in (EagerSteps, CapturedSteps):
        net = build(network, input_shape=shape, classes=[3, 3], seed=1, **small).double()  # type: ignore[arg-type]
        torch.manual_seed(3)
        learner = announced(METHODS[method](net, lr=0.05, **options), data, data)
        learner.start(0)
        learner.finish(0, data)
        learner.start(1)
        state = [tensor.detach() for tensor in learner.step_tensors()]
        begun = [tensor.clone() for tensor in state]
        steps = kind(learner, data, 10)
        if isinstance(steps, CapturedSteps):
            run_to_completion(steps.capture())
        torch._foreach_copy_(state, begun)  # this graph computes while it is captured
        torch.manual_seed(4)
        for _ in range(2):
            run_to_completion(steps.epoch())
        ends.append([*(p.detach().clone() for p in net.parameters()), steps.loss])
    for eager, captured in zip(*ends, strict=True):
        torch.testing.assert_close(captured, eager)


@pytest.mark.parametrize("rows", [7, 10, 90, 100, 103, 195])
def test_graphs_of_any_length_make_up_the_epoch(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a graph that records and recomputes on a CPU. A step has ten rows; a last batch of one row is left out."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    generator = torch.Generator().manual_seed(rows)
    data = Split.of(torch.randn(rows, 1, 6, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator))
    ends = []
    for kind in (EagerSteps, CapturedSteps):
        net = build("mlp", input_shape=(1, 6, 6), classes=[3], seed=1)
        method = METHODS["finetune"](net, lr=0.05)
        method.start(0)
        begun = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        steps = kind(method, data, 10)
        if isinstance(steps, CapturedSteps):
            run_to_completion(steps.capture())
        net.load_state_dict(begun)  # this graph computes while it is captured
        torch.manual_seed(4)
        for _ in range(2):
            run_to_completion(steps.epoch())
        ends.append([*(p.detach().clone() for p in net.parameters()), steps.loss])
    for eager, captured in zip(*ends, strict=True):
        torch.testing.assert_close(captured, eager)


def test_other_runs_may_continue_between_the_parts_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up, first steps, a collection, a graph for several batches, one for the short batch: each in its own turn."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    done: list[str] = []
    monkeypatch.setattr("gc.collect", lambda: done.append("collected"))
    monkeypatch.setattr(CapturedSteps, "_step", lambda self, part: done.append(f"stepped {len(part)}"))
    monkeypatch.setattr("remnant.accelerated.cuda_graph.warm_up", lambda network: done.append("warmed up"))
    method = METHODS["finetune"](build("mlp", input_shape=(1, 6, 6), classes=[3], seed=1), lr=0.05)
    steps = CapturedSteps(method, Split.of(torch.randn(45, 1, 6, 6), torch.zeros(45, dtype=torch.int64)), 10)
    turns = []
    for blocking in steps.capture():
        if blocking is not None:
            blocking()
        turns.append(list(done))
        done.clear()
    assert turns[0] == ["warmed up"]
    assert sorted(turns[1]) == ["stepped 10", "stepped 5"]
    assert turns[2:] == [["collected"], ["stepped 10"] * 2, ["stepped 5"]]


@pytest.mark.gpu
@pytest.mark.parametrize(("network", "dtype"), [("mlp", torch.float32), ("alexnet", torch.float64)])
@pytest.mark.parametrize(
    "method",
    [
        *("gpm", "finetune", "multitask", "single-task", "ewc", "si", "mas", "hat", "er", "agem", "gem", "mega-i"),
        *("mega-ii", "mer", "icarl", "ogd", "owm", "packnet", "space", "dgr", "sgp", "trgp", "dfsgp", "dftrgp"),
        *("wsn", "code-cl", "rogo", "cuber", "fs-dgpm", "adam-nscl", "api"),
    ],
)
def test_a_hundred_captured_steps_equal_eager_ones(method: str, network: str, dtype: torch.dtype) -> None:
    """The deep network uses float64, because a hundred steps amplify float32's rounding beyond any bound."""
    device = torch.device("cuda", 0)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    shape = (1, 28, 28) if network == "mlp" else (3, 32, 32)
    x = torch.randn(645, *shape, device=device, dtype=dtype)
    y = torch.randint(0, 10, (645,), device=device)
    options = {} if network == "mlp" else {"width": 8, "norm": "batch", "dropout": (0.0, 0.0)}
    ends = []
    for steps in (EagerSteps, CapturedSteps):
        net = build(network, input_shape=shape, classes=[10, 10], seed=1, **options).to(device, dtype)
        random = RandomState(5, device)
        random.use()
        learner = METHODS[method](net, lr=0.01, **OPTIONS.get(method, {}))
        if method != "multitask":
            announced(learner, Split.of(x, y), Split.of(x, y))
        with torch.cuda.stream(torch.cuda.Stream(device)):
            learner.start(0)
            learner.finish(0, Split.of(x, y))
            learner.start(1 if method != "multitask" else 0)
            made = steps(learner, Split.of(x, y), 32)
            if isinstance(made, CapturedSteps):
                run_to_completion(made.capture())
            random.set(torch.Generator(device).manual_seed(7).get_state())
            for epoch in range(5):
                learner.on_epoch_start(epoch, 5, made.count)
                run_to_completion(made.epoch())
        torch.cuda.synchronize()
        ends.append([p.detach().clone() for p in net.parameters()])
    for eager, captured in zip(*ends, strict=True):
        assert torch.allclose(eager, captured, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_a_run_may_be_the_first_to_use_the_gpu() -> None:
    first = "import torch; from remnant.training import RandomState; RandomState(0, torch.device('cuda', 0)).use()"
    subprocess.run([sys.executable, "-c", first], check=True)


@pytest.mark.gpu
def test_two_runs_side_by_side_draw_the_numbers_they_would_draw_alone() -> None:
    device = torch.device("cuda", 0)

    def draws(turns: list[tuple[RandomState, list[torch.Tensor], torch.Tensor, torch.cuda.CUDAGraph]]) -> None:
        for random, kept, out, graph in turns:
            random.use()
            graph.replay()
            torch.cuda.synchronize()
            kept.append(out.clone())
            kept.append(torch.rand(3, device=device))

    def run(seed: int) -> tuple[RandomState, list[torch.Tensor], torch.Tensor, torch.cuda.CUDAGraph]:
        random = RandomState(seed, device)
        random.use()
        graph, out = torch.cuda.CUDAGraph(), torch.zeros(4, device=device)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            graph.capture_begin()
            out.copy_(torch.nn.functional.dropout(torch.ones(4, device=device)))
            graph.capture_end()
        return random, [], out, graph

    alone = [run(1), run(2)]
    for turn in alone:
        for _ in range(4):
            draws([turn])
    together = [run(1), run(2)]
    for _ in range(4):
        draws(together)
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    state = together[0][0].get()
    draws(together)
    together[0][0].set(state)
    draws(together[:1])
    assert torch.equal(together[0][1][-1], together[0][1][-3])
