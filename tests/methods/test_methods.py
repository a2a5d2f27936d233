"""Each method's own mathematics, against slow and obvious versions of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant.data import Split, Stream
from remnant.errors import UserError
from remnant.memory import parse_threshold
from remnant.methods import METHODS, Finetune, GradientProjection, Method, Multitask, SingleTask
from remnant.models import Network, build
from small_options import OPTIONS, announced

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((12,), {"hidden": (10, 9)}),
    "alexnet": ((3, 19, 19), {"width": 2}),
    "lenet": ((3, 12, 12), {"width": 2}),
    "resnet18": ((3, 16, 16), {"width": 2}),
}


def network(kind: str = "mlp", classes: int | Sequence[int] = (3, 3), **options: Any) -> Network:
    shape, usual = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=7, **{**usual, **options})


def learner(method: str, net: Network, lr: float = 0.1) -> Method:
    return announced(METHODS[method](net, lr=lr, **OPTIONS.get(method, {})))


def data(shape: Sequence[int], count: int = 40, classes: int = 3, seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=g)
    return Split.of(x, torch.randint(0, classes, (count,), generator=g))


def train(method: Method, split: Split, steps: int = 6, batch: int = 8) -> None:
    for part in torch.arange(len(split)).split(batch)[:steps]:
        method.step(split.x[part], split.y[part])


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- finetune ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_finetune_is_sgd(kind: str) -> None:
    ours, theirs = network(kind).double(), network(kind).double()
    method, split = Finetune(ours, lr=0.125), data(NETWORKS[kind][0])  # a rate that float32 holds exactly
    x = split.x.double()
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.125)
    for task in range(2):
        method.start(task)
        theirs.train()
        for part in torch.arange(40).split(8):
            torch.manual_seed(1)  # dropout
            loss = method.step(x[part], split.y[part])
            torch.manual_seed(1)
            sgd.zero_grad(set_to_none=True)
            expected = F.cross_entropy(theirs(x[part], task), split.y[part])
            expected.backward()
            sgd.step()
            assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
        method.finish(task, split)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_step_follows_a_learning_rate_changed_in_place() -> None:
    method, split = Finetune(network(), lr=0.1), data((12,))
    method.start(0)
    method.lr.fill_(0.0)
    before = weights(method.network)
    train(method, split)
    assert same(weights(method.network), before)


def test_only_the_tasks_own_head_is_trained() -> None:
    method, split = Finetune(network(), lr=0.1), data((12,))
    before = weights(method.network)
    method.start(1)
    train(method, split)
    moved = {name for name, tensor in weights(method.network).items() if not torch.equal(tensor, before[name])}
    assert moved == {"hidden.0.weight", "hidden.1.weight", "heads.1.weight"}


# --- gpm --------------------------------------------------------------------------------------------------------------


class SlowGPM:
    """Sec. 5 written out for an MLP: numpy's SVD of the inputs themselves, and M·Mᵀ as a matrix."""

    def __init__(self, net: Network, lr: float, threshold: float, rule: str) -> None:
        self.net, self.lr, self.threshold, self.rule = net, lr, threshold, rule
        layers = {f"hidden.{i}": layer for i, layer in enumerate(net.hidden)}  # type: ignore[arg-type]
        self.layers: dict[str, nn.Linear] = layers if net.multi_head else {**layers, "head": net.head}  # type: ignore[assignment]
        self.bases = {name: np.zeros((layer.in_features, 0)) for name, layer in self.layers.items()}
        self.added: dict[str, list[int]] = {name: [] for name in self.layers}

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        loss = F.cross_entropy(self.net(x, task), y)
        parameters = [*(layer.weight for layer in self.layers.values()), self.net.head_of(task).weight]
        parameters = list(dict.fromkeys(parameters))
        gradients = torch.autograd.grad(loss, parameters)
        name_of = {layer.weight: name for name, layer in self.layers.items()}
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter in name_of:
                    M = torch.from_numpy(self.bases[name_of[parameter]])
                    gradient = gradient - gradient @ (M @ M.T)  # Eq. 6
                parameter -= self.lr * gradient

    @torch.no_grad()
    def finish(self, x: Tensor) -> None:
        inputs = x.flatten(1)
        for name, layer in self.layers.items():
            self._grow(name, inputs.T.numpy())
            inputs = F.relu(layer(inputs))

    def _grow(self, name: str, R: np.ndarray[Any, Any]) -> None:
        M = self.bases[name]
        total = (R**2).sum()
        R_hat = R - M @ M.T @ R  # Eq. 8
        U, sigma, _ = np.linalg.svd(R_hat, full_matrices=False)
        captured = total - (R_hat**2).sum()
        if self.rule == "authors" and M.shape[1] == 0:
            k = int((np.cumsum(sigma**2) / total < self.threshold).sum())
        else:
            k, explained = 0, captured
            while explained < self.threshold * total:  # Eq. 5, 9
                explained += sigma[k] ** 2
                k += 1
        self.bases[name] = np.hstack([M, U[:, :k]])
        self.added[name].append(k)


@pytest.mark.parametrize("rule", ["paper", "authors"])
@pytest.mark.parametrize("classes", [3, (3, 3, 3)], ids=["one head", "heads"])
@pytest.mark.parametrize("threshold", [0.6, 0.9])
def test_gpm_is_projected_sgd_with_ranks_of_the_inputs_svd(threshold: float, classes: Any, rule: str) -> None:
    ours, theirs = network(classes=classes).double(), network(classes=classes).double()
    method = GradientProjection(ours, lr=0.125, threshold={"value": threshold}, samples=1000, rank_rule=rule)
    slow = SlowGPM(theirs, 0.125, threshold, rule)
    for task in range(3):
        split = data((12,), seed=task)
        x = split.x.double()
        method.start(task)
        for part in torch.arange(40).split(8):
            method.step(x[part], split.y[part])
            slow.step(x[part], split.y[part], task)
        method.finish(task, Split.of(x, split.y))
        slow.finish(x)
        assert method.ranks() == slow.added
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-9)
    assert any(sum(added) < 9 for added in slow.added.values())  # some room is left, so that steps mattered
    assert method.nbytes > 0


def test_the_authors_rank_is_one_lower_after_the_first_task_and_only_then() -> None:
    ranks = {}
    for rule in ("paper", "authors"):
        method = GradientProjection(network(), lr=0.1, threshold={"value": 0.7}, samples=1000, rank_rule=rule)
        method.finish(0, data((12,)))
        ranks[rule] = {name: added[0] for name, added in method.ranks().items()}
    assert ranks["paper"] == {name: rank + 1 for name, rank in ranks["authors"].items()}


def test_gpm_leaves_heads_of_their_own_free_and_holds_a_shared_one() -> None:
    split = data((12,))
    for classes, held in (((3, 3), {"hidden.0", "hidden.1"}), (3, {"hidden.0", "hidden.1", "head"})):
        method = GradientProjection(network(classes=classes), lr=0.1, threshold={"value": 1.0}, samples=1000)
        assert set(method.ranks()) == held
        method.start(0)
        train(method, split)
        with pytest.warns(UserWarning, match="These layers are full"):
            method.finish(0, split)
        before = weights(method.network)
        method.start(1)
        train(method, split)
        after = weights(method.network)
        # At ε = 1 all that the first task's inputs span is held; the head of task 2 is the only weight that learns fully.
        scores = method.logits(split.x, 0)
        method.network.load_state_dict(before)
        assert torch.allclose(scores, method.logits(split.x, 0), atol=1e-4)
        if classes == (3, 3):
            assert torch.equal(after["heads.0.weight"], before["heads.0.weight"])
            assert not torch.allclose(after["heads.1.weight"], before["heads.1.weight"], atol=1e-3)


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_gpm_fixes_normalisation_after_the_first_task(norm: str) -> None:
    method = GradientProjection(network("alexnet", norm=norm), lr=0.1, threshold={"value": 0.5}, samples=40)
    is_norm = [name for name in weights(method.network) if name.startswith("norm")]
    split = data(NETWORKS["alexnet"][0])
    initial = weights(method.network)
    method.start(0)
    train(method, split)
    method.finish(0, split)
    first = weights(method.network)
    assert not any(torch.equal(first[name], initial[name]) for name in is_norm if name.endswith(("weight", "mean")))
    method.start(1)
    assert not {id(p) for p in method.parameters} & {
        id(method.network.get_parameter(f"norm1.{n}")) for n in ("weight", "bias")
    }
    train(method, split)
    second = weights(method.network)
    assert is_norm
    assert all(torch.equal(second[name], first[name]) for name in is_norm)
    assert not torch.equal(second["conv1.weight"], first["conv1.weight"])


def test_gpm_refuses_samples_of_a_layer_that_is_not_there_before_it_trains() -> None:
    with pytest.raises(ValueError, match=r"layer_samples\['hiden.0'\] matches no layer. Did you mean 'hidden.0'\?"):
        GradientProjection(network(), lr=0.1, threshold={"value": 1.0}, samples=4, layer_samples={"hiden.0": 2})


def test_gpm_remembers_as_many_samples_as_it_is_told() -> None:
    """A basis cannot have more directions than examples."""
    method = GradientProjection(network(), lr=0.1, threshold={"value": 1.0}, samples=4)
    method.finish(0, data((12,)))
    assert method.ranks()["hidden.0"] == [4]


@pytest.mark.parametrize(
    ("setting", "epsilon"),
    [
        ({"value": 0.5}, {"hidden.0": [0.5, 0.5], "head": [0.5, 0.5]}),
        ({"start": 0.5, "step": 0.25}, {"hidden.0": [0.5, 0.75], "head": [0.5, 0.75]}),
        ({"layers": {"hidden.0": 0.5, "*": 0.9}}, {"hidden.0": [0.5, 0.5], "head": [0.9, 0.9]}),
    ],
)
def test_a_recipes_threshold_by_layer_and_task(setting: dict[str, Any], epsilon: dict[str, list[float]]) -> None:
    threshold = parse_threshold(setting, epsilon).of
    assert {layer: [threshold(layer, task) for task in range(2)] for layer in epsilon} == epsilon


# --- multitask --------------------------------------------------------------------------------------------------------


def stream_of(sizes: Sequence[int], classes: Sequence[int], head: str = "multi", valid: float = 0.25) -> Stream:
    pairs = []
    for task, (size, number) in enumerate(zip(sizes, classes, strict=True)):
        split = data((12,), size, number, seed=task)
        labels = torch.arange(size) % number  # every class is there
        pairs.append((split.x, labels))
    given_classes = list(classes) if head == "multi" else max(classes)
    return Stream.from_arrays(pairs, test=0.2, valid=valid, head=head, classes=given_classes)  # type: ignore[arg-type]


@given(st.lists(st.integers(16, 60), min_size=2, max_size=4), st.integers(1, 70))
def test_every_whole_batch_of_joint_training_is_of_one_task(sizes: list[int], batch: int) -> None:
    stream = stream_of(sizes, [2 + n for n in range(len(sizes))])
    method = Multitask(network(classes=stream.head_sizes), lr=0.1)
    (joint,) = method.curriculum(stream)
    orders = [method.order(joint.train, batch) for _ in range(2)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(len(joint.train)))
        tasks = method.mixed.task_of[joint.train.y[order]]
        whole = sum(len(task.train) // batch for task in stream)
        for part in tasks.split(batch)[:whole]:
            assert len(part) == batch
            assert len(part.unique()) == 1
    assert not torch.equal(*orders)


def test_a_shared_heads_joint_batches_are_mixed() -> None:
    stream = stream_of([200, 200], [3, 3], head="single")
    method = Multitask(network(classes=3), lr=0.1)
    (joint,) = method.curriculum(stream)
    first = method.order(joint.train, 20)[:20]
    assert 0 < int((first < len(stream[0].train)).sum()) < 20


def test_the_masked_loss_is_each_examples_loss_under_its_own_head() -> None:
    net = network(classes=(2, 3, 4)).double()
    method = Multitask(net, lr=0.1)
    x = torch.randn(30, 12, dtype=torch.float64)
    tasks = torch.arange(30) % 3
    own = torch.tensor([int(torch.randint(0, (2, 3, 4)[t], ())) for t in tasks])
    joint = own + torch.tensor([0, 2, 5])[tasks]
    expected = sum(F.cross_entropy(net(x[i : i + 1], int(tasks[i])), own[i : i + 1]) for i in range(30))
    loss = method.loss(x, joint)
    assert loss.item() == pytest.approx(float(expected.detach()) / 30, rel=1e-12)
    gradients = method.gradients(loss)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert len(gradients) == len(list(net.parameters()))  # all heads learn at once


@pytest.mark.parametrize("head", ["multi", "single"])
def test_joint_labels_map_back_to_each_tasks_own(head: str) -> None:
    stream = stream_of([40, 30, 50], [2, 3, 4], head=head)
    classes = stream.head_sizes if head == "multi" else stream.head_sizes[0]
    method = Multitask(network(classes=classes), lr=0.1)
    (joint,) = method.curriculum(stream)
    assert len(joint.train) == sum(len(task.train) for task in stream)
    assert joint.classes == (9 if head == "multi" else 4)
    offsets = [0, 2, 5] if head == "multi" else [0, 0, 0]
    for part in ("train", "valid", "test"):
        splits = [getattr(task, part) for task in stream]
        assert torch.equal(getattr(joint, part).x, torch.cat([split.x for split in splits]))
        labels = torch.cat([split.y + by for split, by in zip(splits, offsets, strict=True)])
        assert torch.equal(getattr(joint, part).y, labels)
    validation = method.validation(0, joint.valid)
    if head == "single":
        assert validation == {0: joint.valid}
    else:
        for task, split in validation.items():
            assert torch.equal(split.x, stream[task].valid.x)
            assert torch.equal(split.y, stream[task].valid.y)
        assert list(validation) == [0, 1, 2]


def test_joint_training_needs_no_validation_set() -> None:
    stream = stream_of([40, 30], [2, 3], valid=0.0)
    method = Multitask(network(classes=stream.head_sizes), lr=0.1)
    (joint,) = method.curriculum(stream)
    joint = joint.to("cpu")
    assert len(joint.valid) == 0
    assert method.validation(0, joint.valid) == {}


# --- single-task ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_single_task_networks_stay_as_they_were_bit_for_bit(kind: str) -> None:
    method = SingleTask(network(kind, (3, 3, 3)), lr=0.1)
    initial, x, logits = weights(method.network), data(NETWORKS[kind][0]).x, []
    for task in range(3):
        method.start(task)
        assert same(weights(method.network), initial)
        split = data(NETWORKS[kind][0], seed=task)
        train(method, split)
        method.network.eval()
        trained = method.network(x, task)
        method.finish(task, split)
        logits.append(method.logits(x, task))
        assert torch.equal(logits[-1], trained)
        assert method.capacity == task + 1
        for earlier in range(task + 1):
            assert torch.equal(method.logits(x, earlier), logits[earlier])
    one = sum(tensor.nbytes for tensor in initial.values())
    assert method.nbytes == 3 * one
    assert Finetune(network(kind), lr=0.1).capacity == 1.0


# --- every method -----------------------------------------------------------------------------------------------------


def play(method: Method, kind: str, tasks: range, heads: bool) -> list[Tensor]:
    """Two tasks of a tiny stream, as the trainer would."""
    losses = []
    for task in tasks:
        split = data(NETWORKS[kind][0], seed=task)
        if isinstance(method, Multitask) and heads:
            split = Split.of(split.x, split.y + 3 * task)
        method.start(task)
        method.on_epoch_start(0, 1, 5)
        for part in method.order(split, 8).split(8):
            losses.append(method.step(split.x[part], split.y[part]))
        method.finish(task, split)
    return losses


# The test below trains an AlexNet with heads. Convolutions meet a single head in the AlexNet as in the LeNet.
SHORT = [("mlp", True), ("mlp", False), ("lenet", True), ("alexnet", False)]


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize(
    ("kind", "heads"),
    [
        pytest.param(kind, heads, marks=[] if (kind, heads) in SHORT else [pytest.mark.long])
        for kind in NETWORKS
        for heads in (True, False)
    ],
)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_on_every_network(name: str, kind: str, heads: bool) -> None:
    if METHODS[name].needs_task and not heads:
        with pytest.raises(ValueError, match="needs the task at test time"):
            learner(name, network(kind, 3))
        return
    method = learner(name, network(kind, (3, 3) if heads else 3), lr=0.05)
    losses = play(method, kind, range(2), heads)
    assert all(loss.isfinite() and not loss.requires_grad for loss in losses)
    method.network.eval()
    for task in range(2):
        assert method.logits(data(NETWORKS[kind][0]).x, task).shape == (40, 3)
    assert all(tensor.grad is None for tensor in method.network.parameters())


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize("kind", ["mlp", "alexnet"])
@pytest.mark.parametrize("name", METHODS)
def test_a_state_put_into_a_new_method_goes_on_identically(name: str, kind: str) -> None:
    """Saved in the middle of the second task; the new one has learnt nothing."""
    one, other = learner(name, network(kind)), learner(name, network(kind))
    play(one, kind, range(1), heads=True)
    split = data(NETWORKS[kind][0], seed=5)
    one.start(1)
    one.on_epoch_start(0, 1, 7)
    train(one, split, steps=2)
    state = {"method": one.state_dict(), "random": torch.get_rng_state()}
    kept = _copied(state["method"])
    other.start(1)
    other.load_state_dict(kept)
    ends = []
    for method in (one, other):
        torch.set_rng_state(state["random"])  # type: ignore[arg-type]
        losses = []
        for part in method.order(split, 8).split(8):
            losses.append(method.step(split.x[part], split.y[part]))
        method.finish(1, split)
        method.network.eval()
        logits = [method.logits(split.x, task) for task in range(2)]
        ends.append([*losses, *logits, *weights(method.network).values()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert one.ranks() == other.ranks()
    assert (one.nbytes, one.capacity) == (other.nbytes, other.capacity)


def _copied(node: Any) -> Any:
    """As a file would give it back: nothing shared."""
    if isinstance(node, Tensor):
        return node.detach().clone()
    if isinstance(node, dict):
        return {key: _copied(value) for key, value in node.items()}
    return [_copied(value) for value in node] if isinstance(node, list) else node


@pytest.mark.parametrize(
    ("hook", "taken", "must_take"),
    [
        ("start", "self", "self, task"),
        ("loss", "self, x", "self, x, y"),
        ("gradients", "self", "self, loss"),
        ("step", "self, x, y, task", "self, x, y"),
        ("finish", "self, task", "self, task, train"),
        ("logits", "self, x", "self, x, task"),
    ],
)
def test_a_hook_that_could_not_be_called_is_refused_when_its_class_is_made(
    hook: str, taken: str, must_take: str
) -> None:
    with pytest.raises(UserError, match=re.escape(f"Own.{hook} must take ({must_take}), and it takes ({taken}).")):
        exec(f"class Own(Method):\n    def {hook}({taken}): ...", {"Method": Method})
    exec(f"class Own(Method):\n    def {hook}({must_take}, more=1, **others): ...", {"Method": Method})


def test_methods_go_by_the_names_they_give_themselves() -> None:
    assert {"gpm", "finetune", "multitask", "single-task"} <= METHODS.keys()
    assert all(METHODS[name].name == name and METHODS[name].__doc__ for name in METHODS)


@pytest.mark.parametrize("method", ["packnet", "space", "rcl", "den", "apd"])
def test_a_method_whose_tasks_have_phases_is_not_annealed(method: str) -> None:
    with pytest.raises(ValueError, match="sets the rates of a task's phases itself"):
        METHODS[method](network("alexnet"), anneal=True)
