"""What an optimizer may move when it is attached, detached, shared or sparse, and what a hand-written step may move."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from small_net import Net, adamw, data, train
from torch import Tensor, nn

from remnant import GPM, LeakError
from remnant.memory.weights.protected import ProtectedWeight

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def test_an_optimizer_of_another_model_is_refused(memory: GPM, net: Net) -> None:
    with pytest.raises(ValueError, match="trains none of the model"):
        memory.attach(adamw(copy.deepcopy(net)))


def test_attaching_twice_is_attaching_once(memory: GPM, net: Net) -> None:
    optimizer = adamw(net)
    assert memory.attach(optimizer) is optimizer
    assert memory.attach(optimizer) is optimizer
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 1
    memory.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_detached_optimizer_is_free_and_the_memory_notices(memory: GPM, net: Net) -> None:
    optimizer = memory.attach(adamw(net))
    memory.detach(optimizer)
    train(net, optimizer, data())
    with pytest.raises(LeakError, match=r"'hidden'.*attached"):
        memory.verify()
    with pytest.warns(UserWarning, match=r"changed inside the subspaces of earlier tasks: .*hidden"):
        memory.consolidate(data())
    memory.verify()  # the leak counts from the last consolidate


def test_two_optimizers_may_share_a_model(net: Net) -> None:
    memory = GPM(net, threshold=0.95)
    memory.consolidate(data())
    body = [p for name, p in net.named_parameters() if not name.startswith("out")]
    optimizers = [
        memory.attach(torch.optim.AdamW(body, lr=0.01, weight_decay=0.1)),
        memory.attach(torch.optim.SGD(net.out.parameters(), lr=0.1, momentum=0.9)),
    ]
    for _ in range(10):
        net.zero_grad()
        (net(data()) - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert memory.verify().worst < 1e-4
    memory.detach(optimizers[0])
    assert not net.norm.training, "norms are held while any optimizer is attached"
    memory.detach(optimizers[1])
    assert net.norm.training


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_do_not_reach_remembered_rows(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Embedding(10, 4, sparse=True)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.tensor([[0, 1, 2]]))
    before = model.weight.detach().clone()
    chosen = memory.attach(optimizer(model.parameters(), lr=0.1))
    train(model, chosen, torch.arange(6), steps=5)
    assert torch.equal(model.weight[:3], before[:3])
    assert not torch.equal(model.weight[3:6], before[3:6])


def test_a_sparse_gradient_is_projected_like_a_dense_one() -> None:
    """`project` alone is exact for plain SGD, and directions of a weight below 1 keep their part of the gradient."""
    gradients = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(10, 4, sparse=sparse)
        memory = GPM(model, threshold=1.0)
        memory.consolidate(torch.tensor([[0, 1, 2]]))
        next(iter(memory.subspaces.values())).weights = torch.tensor([1.0, 0.25, 1.0])
        (model(torch.tensor([5, 0, 1, 1, 5])) - 1).square().sum().backward()
        memory.project()
        gradients.append(model.weight.grad.to_dense())
    assert not gradients[0][0].any()
    assert gradients[0][[1, 5]].all()
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_projection_of_a_sparse_gradient_leaves_others_that_share_its_memory() -> None:
    """torch hands both tables of a sum the same numbers, in the same memory."""
    words = torch.arange(2)
    model = nn.ModuleList([nn.Embedding(4, 3, sparse=True), nn.Embedding(4, 3, sparse=True)])
    memory = GPM(model, threshold=1.0, exclude=["1"])
    memory.consolidate(words, forward=lambda model, words: model[0](words))
    (model[0](words) + model[1](words)).square().sum().backward()
    own, other = (table.weight.grad for table in model)
    assert own._values().data_ptr() == other._values().data_ptr()
    before = other.to_dense()
    memory.project()
    assert not model[0].weight.grad.to_dense().any()
    assert torch.equal(model[1].weight.grad.to_dense(), before)


def test_plain_sgd_on_a_sparse_table_seldom_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its projected gradient does not reach remembered rows, so that nothing has to be put back."""
    restored: list[Tensor] = []
    original = ProtectedWeight.restore_rows
    monkeypatch.setattr(
        ProtectedWeight, "restore_rows", lambda own, start, rows: (restored.append(rows), original(own, start, rows))
    )
    model = nn.Embedding(10, 4, sparse=True)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.tensor([[0, 1, 2]]))
    before = model.weight.detach().clone()
    train(model, memory.attach(torch.optim.SGD(model.parameters(), lr=0.1)), torch.arange(6), steps=7)
    assert torch.equal(model.weight[:3], before[:3])
    assert not restored


def test_a_hand_written_step_is_exact_with_project_and_restore(memory: GPM, net: Net) -> None:
    x = data()
    for _ in range(5):
        net.zero_grad()
        (net(x) - 1).square().mean().backward()
        memory.project()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad + 0.01 * parameter  # a decay no projection has seen
        memory.restore()
    assert memory.verify().worst < 1e-5
