"""The Lightning callback with the real Trainer: every `fit` is a task, and later fits keep the outputs of earlier ones."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from two_ranks import equal_on_both_ranks

from remnant import GPM, LeakError

L = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint  # noqa: E402

from remnant.integrations.lightning import GPMCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and small batches
ENERGY = 0.99999


class Module(L.LightningModule):  # type: ignore[name-defined,misc]
    """A classifier with a normalisation layer."""

    def __init__(self, optimizer: str = "AdamW", lr: float = 1e-2) -> None:
        super().__init__()
        self.optimizer, self.lr = optimizer, lr
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=self.lr, weight_decay=0.01)  # type: ignore


class Manual(Module):
    """The same, with steps of its own that clip the gradients."""

    def __init__(self, clip: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.automatic_optimization, self.clip = False, clip

    def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self(batch[0]), batch[1]))
        self.clip_gradients(optimizer, gradient_clip_val=self.clip, gradient_clip_algorithm="norm")
        optimizer.step()


def task(number: int, shuffle: bool = False) -> DataLoader[Any]:
    """Inputs of two dimensions out of twelve, other ones in each task."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(40, 2, generator=generator) @ torch.randn(2, 12, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), batch_size=10, shuffle=shuffle)


def inputs(loader: DataLoader[Any]) -> Tensor:
    return loader.dataset.tensors[0]  # type: ignore[attr-defined,no-any-return]


def trainer(*callbacks: Any, **options: Any) -> Any:
    usual = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(callbacks=list(callbacks), **{**usual, **quiet, **options})


def outputs(model: Any, loader: DataLoader[Any]) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(inputs(loader).to(model.dtype)).float()  # type: ignore[no-any-return]


def drift(model: Any, callbacks: list[Any], **options: Any) -> float:
    """How far the outputs for the first task move while two more are learnt by one Trainer."""
    tasks = [task(number) for number in range(3)]
    one = trainer(*callbacks, **options)
    one.fit(model, tasks[0])
    before = outputs(model, tasks[0])
    for loader in tasks[1:]:
        if not callbacks:  # a Trainer counts epochs over all its fits; the callback resets it
            one.fit_loop.epoch_progress.reset()
        one.fit(model, loader)
    return float((outputs(model, tasks[0]) - before).norm() / before.norm())


def weights(model: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Module, {}),
        (Module, {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}),
        (Module, {"precision": "bf16-mixed"}),
        (Manual, {}),
    ],
)
def test_old_outputs_stay_with_the_callback_and_move_without_it(kind: Any, options: dict[str, Any]) -> None:
    gpm = GPMCallback(threshold=ENERGY)
    kept, plain = drift(kind(), [gpm], **options), drift(kind(), [], **options)
    assert kept < 0.02 < 0.3 < plain
    assert len(gpm.memory) == 3
    assert gpm.verification is not None
    assert gpm.verification.worst < 1e-5
    assert max(check.drift or 0 for check in gpm.verification.tasks) < 0.02


def test_narrow_weights_are_protected_up_to_their_rounding() -> None:
    gpm = GPMCallback(threshold=ENERGY)
    assert drift(Module(), [gpm], precision="bf16-true") < 0.1
    assert gpm.verification is not None
    assert not gpm.verification.leaking


def test_one_trainer_for_all_tasks_is_a_new_trainer_for_each() -> None:
    results = []
    for shared in (True, False):
        gpm, model = GPMCallback(threshold=ENERGY), Module()
        one = trainer(gpm)
        for number in range(2):
            (one if shared else trainer(gpm)).fit(model, task(number))
        results.append(weights(model))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("kind", [Module, Manual])
def test_clipping_acts_on_the_projected_gradient(kind: Any) -> None:
    clip = 1e-3
    model = kind(optimizer="SGD", lr=1.0) if kind is Module else kind(clip=clip, optimizer="SGD", lr=1.0)
    gpm = GPMCallback(threshold=ENERGY)
    trainer(gpm).fit(model, task(0))
    before = weights(model)
    options = {"gradient_clip_val": clip} if kind is Module else {}
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=1.0)
    trainer(gpm, max_epochs=1, limit_train_batches=1, **options).fit(model, task(1))
    step = torch.cat([(now - then).flatten() for now, then in zip(weights(model), before, strict=True)]).norm()
    assert step == pytest.approx(clip, rel=1e-3)


def test_a_clipping_of_the_users_own_gets_projected_gradients() -> None:
    class Own(Module):
        def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
            basis = gpm.memory.subspaces["net.0"].basis  # type: ignore[union-attr]
            layer = self.net[0]
            gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1)  # type: ignore[arg-type,index]
            self.inside = float((gradient @ basis.to(gradient)).norm() / gradient.norm())

    gpm, model = GPMCallback(threshold=ENERGY), Own()
    for number in range(2):
        trainer(gpm).fit(model, task(number))
    assert model.inside < 1e-5


class StopAt(L.Callback):  # type: ignore[name-defined,misc]
    """Ends a fit after some batches, as a crash would."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def on_train_batch_start(self, *_: Any) -> None:
        self.batches -= 1
        if self.batches < 0:
            raise RuntimeError("the machine is switched off")


def test_a_resumed_task_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    model, gpm = Module(), GPMCallback(threshold=ENERGY)
    trainer(gpm).fit(model, task(0))
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1)
    trainer(gpm, saving, enable_checkpointing=True).fit(model, task(1))
    resumed, fresh = Module(), GPMCallback(threshold=ENERGY)
    trainer(fresh).fit(resumed, task(1), ckpt_path=tmp_path / "epoch=0-step=4.ckpt")
    assert all(map(torch.equal, weights(model), weights(resumed)))
    for name, subspace in gpm.memory.subspaces.items():
        assert torch.equal(subspace.basis, fresh.memory.subspaces[name].basis)  # type: ignore[union-attr]
    assert len(fresh.memory) == 2


def test_a_checkpoint_of_an_earlier_task_is_refused(tmp_path: Path) -> None:
    model, gpm = Module(), GPMCallback(threshold=ENERGY)
    saving = ModelCheckpoint(tmp_path, filename="last")
    trainer(gpm, saving, enable_checkpointing=True).fit(model, task(0))
    with pytest.raises(
        ValueError, match=r"earlier task: its memory holds 0 task\(s\), and this callback has remembered 1"
    ):
        trainer(gpm).fit(model, task(1), ckpt_path=tmp_path / "last.ckpt")
    assert len(gpm.memory) == 1


def test_the_next_task_begins_after_a_checkpoint_of_a_finished_one(tmp_path: Path) -> None:
    model, gpm = Module(), GPMCallback(threshold=ENERGY)
    one = trainer(gpm)
    one.fit(model, task(0))
    one.save_checkpoint(tmp_path / "first.ckpt")
    one.fit(model, task(1))
    resumed, fresh = Module(), GPMCallback(threshold=ENERGY)
    trainer(fresh).fit(resumed, task(1), ckpt_path=tmp_path / "first.ckpt")
    assert len(fresh.memory) == 2
    assert all(map(torch.equal, weights(model), weights(resumed)))


def test_a_task_is_remembered_that_was_killed_between_its_last_step_and_its_end(tmp_path: Path) -> None:
    model, gpm = Module(), GPMCallback(threshold=ENERGY)
    trainer(gpm, ModelCheckpoint(tmp_path, filename="last"), enable_checkpointing=True).fit(model, task(0))
    resumed, fresh = Module(), GPMCallback(threshold=ENERGY)
    trainer(fresh).fit(resumed, task(0), ckpt_path=tmp_path / "last.ckpt")
    assert len(fresh.memory) == 1
    assert fresh.memory.report().as_dict() == gpm.memory.report().as_dict()


def test_a_fit_that_crashes_remembers_nothing_and_can_start_again() -> None:
    model, gpm = Module(), GPMCallback(threshold=ENERGY)
    trainer(gpm).fit(model, task(0))
    with pytest.raises(RuntimeError, match="switched off"):
        trainer(gpm, StopAt(3)).fit(model, task(1))
    assert len(gpm.memory) == 1
    trainer(gpm).fit(model, task(1))
    assert len(gpm.memory) == 2


def test_the_best_weights_are_those_that_are_remembered(tmp_path: Path) -> None:
    class Worsens(Module):
        def on_train_epoch_end(self) -> None:
            self.log("error", float(self.current_epoch))

    model, gpm = Worsens(), GPMCallback(threshold=ENERGY, restore_best=True)
    for number in range(2):
        best = ModelCheckpoint(tmp_path / str(number), monitor="error")
        trainer(gpm, best, enable_checkpointing=True, max_epochs=3).fit(model, task(number))
        saved = torch.load(best.best_model_path, weights_only=True)
        assert saved["epoch"] == 0
        assert all(torch.equal(tensor, saved["state_dict"][name]) for name, tensor in model.state_dict().items())
    anchors = gpm.memory.state_dict()["anchors"]
    assert all(torch.equal(anchor, model.get_parameter(name)) for name, anchor in anchors.items())
    with pytest.raises(RuntimeError, match="no checkpoint of this task"):  # the score of the second task is not lower
        trainer(gpm, best, enable_checkpointing=True).fit(model, task(2))


def test_averaged_weights_are_remembered_if_the_callback_comes_last() -> None:
    gpm, model = GPMCallback(threshold=ENERGY), Module()
    trainer(EMAWeightAveraging(decay=0.5), gpm).fit(model, task(0))
    before = outputs(model, task(0))
    trainer(EMAWeightAveraging(decay=0.5), gpm).fit(model, task(1))
    assert (outputs(model, task(0)) - before).norm() < 0.02 * before.norm()
    gpm, model = GPMCallback(threshold=ENERGY), Module()
    trainer(gpm, EMAWeightAveraging(decay=0.5)).fit(model, task(0))
    with pytest.raises(LeakError, match="averaged"):
        trainer(gpm).fit(model, task(1))


def test_testing_with_a_checkpoint_does_not_change_the_memory_but_is_noticed(tmp_path: Path) -> None:
    class Tested(Module):
        def test_step(self, batch: Any, index: int) -> None:
            self(batch[0])

    model, gpm = Tested(), GPMCallback(threshold=ENERGY)
    one = trainer(gpm, ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1), enable_checkpointing=True)
    one.fit(model, task(0))
    one.test(model, task(0), ckpt_path=tmp_path / "epoch=0-step=2.ckpt", verbose=False)
    assert len(gpm.memory) == 1
    with pytest.raises(LeakError) as error:
        one.fit(model, task(1))
    assert "before the first step of the task" in error.value.__notes__[0]


def test_batches_are_remembered_as_training_saw_them() -> None:
    class Scaled(Module):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0] * torch.arange(12), batch[1]

    gpm = GPMCallback(threshold=ENERGY)
    trainer(gpm).fit(model := Scaled(), task(0))
    memory = GPM(model, threshold=ENERGY)
    memory.consolidate(inputs(task(0)) * torch.arange(12))
    expected, found = (x.subspaces["net.0"].basis for x in (memory, gpm.memory))  # type: ignore[union-attr]
    assert torch.allclose(expected @ expected.T, found @ found.T, atol=1e-6)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(task(0).dataset)  # type: ignore[arg-type]


def test_an_endless_loader_is_read_as_far_as_it_was_trained_on() -> None:
    gpm = GPMCallback(threshold=ENERGY)
    trainer(gpm, max_epochs=-1, max_steps=4).fit(Module(), DataLoader(Endless(), batch_size=10))
    assert len(gpm.memory) == 1


def test_a_resumed_task_on_an_endless_loader_is_read_as_far_as_it_was_trained_on(tmp_path: Path) -> None:
    loader: DataLoader[Any] = DataLoader(Endless(), batch_size=10)
    saving = ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=4)
    trainer(GPMCallback(), saving, max_epochs=-1, max_steps=4, enable_checkpointing=True).fit(Module(), loader)
    fresh = GPMCallback()  # the process ended between the last step and the end of the task
    trainer(fresh, max_epochs=-1, max_steps=4).fit(Module(), loader, ckpt_path=tmp_path / "last.ckpt")
    assert len(fresh.memory) == 1


class Sentences(L.LightningModule):  # type: ignore[name-defined,misc]
    """Reads padded sequences, in batches that are dicts with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 6), nn.Linear(6, 2)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        kept = self.words(ids) * attention_mask[..., None]
        return self.head(kept.sum(1))  # type: ignore[no-any-return]

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self(**batch).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_padding_is_not_remembered() -> None:
    ids = torch.tensor([[1, 2, 3, 0], [3, 4, 0, 0], [5, 1, 2, 4]])  # 0 is the padding
    batch = {"ids": ids, "attention_mask": (ids > 0).long()}
    gpm = GPMCallback(threshold=1.0)
    trainer(gpm).fit(Sentences(), DataLoader([batch], batch_size=None))  # type: ignore[arg-type]
    assert gpm.memory.subspaces["words"].rank == 5  # type: ignore[union-attr]


def test_other_batches_and_a_memory_can_be_given(tmp_path: Path) -> None:
    model = Module()
    trainer(gpm := GPMCallback(threshold=ENERGY, samples=20)).fit(model, task(0))
    gpm.memory.save(tmp_path / "memory.safetensors")
    memory = GPM.load(tmp_path / "memory.safetensors", model)
    trainer(GPMCallback(memory, batches=lambda trainer: [inputs(task(5))])).fit(model, task(1))
    assert len(memory) == 2


def test_tasks_with_parts_of_their_own_need_a_memory_made_before() -> None:
    with pytest.raises(ValueError, match=r"pass it: memory=GPM"):
        GPMCallback(recall=True, own_rank=2)
    model, tasks = Module(), [task(0), task(1)]
    memory = GPM(model, 0.9, recall=True, own_rank=2, norm="per-task")
    one = trainer(GPMCallback(memory))
    one.fit(model, tasks[0])
    with memory.recall(0):
        before = outputs(model, tasks[0])
    one.fit(model, tasks[1])
    with memory.recall(0):
        torch.testing.assert_close(outputs(model, tasks[0]), before)


def test_what_would_fail_at_the_end_fails_at_the_start() -> None:
    class NoForward(L.LightningModule):  # type: ignore[name-defined,misc]
        training_step, configure_optimizers = Module.training_step, Module.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.net, self.optimizer, self.lr = nn.Linear(12, 3), "SGD", 0.1

    with pytest.raises(TypeError, match="thresold"):
        GPMCallback(thresold=0.9)
    with pytest.raises(ValueError, match="has its own options"):
        GPMCallback(GPM(nn.Linear(2, 2)), threshold=0.9)
    with pytest.raises(ValueError, match="has no forward"):
        trainer(GPMCallback()).fit(NoForward(), task(0))
    with pytest.raises(ValueError, match="needs a ModelCheckpoint"):
        trainer(GPMCallback(restore_best=True)).fit(Module(), task(0))
    with pytest.raises(ValueError, match="several loaders"):
        trainer(GPMCallback(forward=lambda module, batch: None)).fit(Module(), [task(0), task(1)])
    with pytest.raises(RuntimeError, match="no memory yet"):
        _ = GPMCallback().memory
    gpm = GPMCallback(threshold=ENERGY)
    one = trainer(gpm, max_epochs=-1, max_steps=2)
    one.fit(Module(), task(0))
    with pytest.raises(ValueError, match="counts max_steps"):
        one.fit(Module(), task(1))
    with pytest.raises(ValueError, match="none of the model's parameters"):
        trainer(gpm).fit(Module(), task(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples is 0: it must be a positive whole number, or None for all"),
        ({"samples": "all"}, "samples is 'all'"),
        (
            {"forward": lambda batch: None},
            r"forward must be a function of \(model, batch\), and this one takes \(batch\)",
        ),
        ({"forward": 3}, "and it is 3"),
        ({"batches": lambda: []}, r"batches must be a function of \(trainer\), and this one takes \(\)"),
    ],
)
def test_options_that_consolidate_would_refuse_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GPMCallback(**options)


@pytest.mark.filterwarnings("default")
def test_a_new_callback_for_each_task_gives_a_warning() -> None:
    model, gpm = Module(), GPMCallback(threshold=ENERGY)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Another")
        for number in range(2):
            trainer(gpm).fit(model, task(number))
        trainer(GPMCallback(gpm.memory)).fit(model, task(2))
        trainer(GPMCallback(threshold=ENERGY)).fit(Module(), task(0))
    with pytest.warns(
        UserWarning, match=r"remembered 3 task\(s\) of this model.* Make the callback once, before the loop"
    ):
        trainer(GPMCallback(threshold=ENERGY)).fit(model, task(3))


def learn_on_two_ranks(rank: int, folder: Path, port: int) -> None:
    names = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({**{name: str(value) for name, value in names.items()}, "GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    gpm, model = GPMCallback(threshold=ENERGY), Module()
    for number in range(2):
        trainer(gpm, devices=2, strategy="ddp", gradient_clip_val=0.5).fit(model, task(number))
    assert gpm.verification is not None
    assert gpm.verification.worst < 1e-5
    gpm.memory.save(folder / f"rank{rank}.safetensors")
    torch.save(model.state_dict(), folder / f"weights{rank}.pt")


def test_two_processes_end_with_the_same_weights_and_memory(tmp_path: Path) -> None:
    memories = equal_on_both_ranks(learn_on_two_ranks, tmp_path, Module)
    alone = GPMCallback(threshold=ENERGY)
    trainer(alone).fit(Module(), task(0))
    assert memories[0].report().layers[0].added[0] == alone.memory.report().layers[0].added[0]
