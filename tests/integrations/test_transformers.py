"""The callback for HuggingFace's Trainer, with tiny models from a config: every `train()` is a task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from two_ranks import equal_on_both_ranks

from remnant import GPM

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers", minversion="5")
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, Trainer  # noqa: E402

from remnant.integrations.padding import Unpadded  # noqa: E402
from remnant.integrations.transformers import GPMTrainerCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ENERGY = 0.99999
WORDS = 8  # of each task


def classifier() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 40}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=12, **sizes, **quiet))


def task(number: int, examples: int = 24) -> list[dict[str, Any]]:
    """Sentences of different lengths. Each task has its own words."""
    generator = torch.Generator().manual_seed(number)
    first = 2 + WORDS * number
    rows = []
    for index in range(examples):
        length = 3 + index % 4
        words = torch.randint(first, first + WORDS, (length,), generator=generator).tolist()
        rows.append({"input_ids": [1, *words], "labels": int(words[0] - first < WORDS // 2)})
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    padding = [longest - len(row["input_ids"]) for row in rows]
    ids = [row["input_ids"] + [0] * more for row, more in zip(rows, padding, strict=True)]
    mask = [[1] * (longest - more) + [0] * more for more in padding]
    labels = [row["labels"] for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def arguments(folder: Path, **options: Any) -> Any:
    usual = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "save_strategy": "no"}
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    return transformers.TrainingArguments(str(folder), **{**usual, **quiet, **options})


def train(model: Any, rows: Any, callbacks: list[Any], args: Any, **options: Any) -> Any:
    one = Trainer(model, args, train_dataset=rows, data_collator=collate, callbacks=callbacks)
    one.train(**options)
    return one


def outputs(model: Any, rows: list[dict[str, Any]]) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(**collate(rows)).logits.float()  # type: ignore[no-any-return]


def drift(callbacks: list[Any], folder: Path, **options: Any) -> float:
    """How far the outputs for the first task move while two more are learnt."""
    model = classifier()
    train(model, task(0), callbacks, arguments(folder, **options))
    before = outputs(model, task(0))
    for number in (1, 2):
        train(model, task(number), callbacks, arguments(folder, **options))
    return float((outputs(model, task(0)) - before).norm() / before.norm())


def weights(model: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_old_outputs_move_without_the_callback(tmp_path: Path) -> None:
    assert drift([], tmp_path) > 0.3


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}, {"bf16": True, "max_grad_norm": 0.0}],
)
def test_old_outputs_stay_with_the_callback(tmp_path: Path, options: dict[str, Any]) -> None:
    gpm = GPMTrainerCallback(threshold=ENERGY)
    assert drift([gpm], tmp_path, **options) < 0.05
    assert len(gpm.memory) == 3
    assert gpm.verification is not None
    assert not gpm.verification.leaking


def test_a_compiled_model_is_protected(tmp_path: Path) -> None:
    gpm, model = GPMTrainerCallback(threshold=ENERGY), classifier()
    for number in range(2):
        args = arguments(tmp_path, torch_compile=True, torch_compile_backend="eager", num_train_epochs=1)
        before = outputs(model, task(0))
        train(model, task(number, 8), [gpm], args)
    assert len(gpm.memory) == 2
    assert gpm.verification is not None
    assert not gpm.verification.leaking
    assert (outputs(model, task(0, 8)) - before[:8]).norm() < 0.05 * before[:8].norm()


def test_lora_adapters_are_merged_after_each_task(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    gpm, model = GPMTrainerCallback(threshold=ENERGY, lora="inputs"), peft.get_peft_model(classifier(), config)
    train(model, task(0), [gpm], arguments(tmp_path))
    before = outputs(model, task(0))
    train(model, task(1), [gpm], arguments(tmp_path))
    assert gpm.verification is not None
    assert not gpm.verification.leaking
    assert (outputs(model, task(0)) - before).norm() < 0.05 * before.norm()


def test_padding_is_not_remembered(tmp_path: Path) -> None:
    model = classifier()
    train(model, task(0), [gpm := GPMTrainerCallback(threshold=ENERGY)], arguments(tmp_path))
    embedding = gpm.memory.subspaces["bert.embeddings.word_embeddings"]
    assert embedding.rank == 1 + WORDS  # type: ignore[union-attr]
    padded = GPM(model, threshold=ENERGY)
    padded.consolidate([collate(task(0))])
    assert padded.subspaces["bert.embeddings.word_embeddings"].rank == 2 + WORDS  # type: ignore[union-attr]
    alone = GPM(model, threshold=ENERGY)
    alone.consolidate([collate([row]) for row in task(0)])
    for name, subspace in gpm.memory.subspaces.items():
        theirs = alone.subspaces[name]
        assert subspace.rank == theirs.rank  # type: ignore[union-attr]


def test_batches_are_cut_by_length() -> None:
    batch: dict[str, Any] = {**collate(task(0, 5)), "weights": torch.rand(5, 7), "temperature": torch.tensor(2.0)}
    batch["weights"] = torch.rand(batch["attention_mask"].shape)  # one number per label, as many as there are tokens
    cut = list(Unpadded([batch]))
    assert sorted(len(part["input_ids"]) for part in cut) == [1, 1, 1, 2]
    assert all(part["attention_mask"].all() for part in cut)
    assert all(part["weights"].shape[1] == batch["weights"].shape[1] for part in cut)
    assert all(part["temperature"] == 2 for part in cut)
    assert torch.cat([part["labels"] for part in cut]).sum() == batch["labels"].sum()
    left = {name: value.flip(1) if value.ndim == 2 else value for name, value in collate(task(0, 5)).items()}
    with pytest.warns(UserWarning, match="Padding on the left"):
        (whole,) = Unpadded([left])
    assert whole is left
    tensors = [torch.zeros(2), (torch.ones(1), torch.ones(1))]
    assert list(Unpadded(tensors)) == tensors


def test_clipping_acts_on_the_projected_gradient(tmp_path: Path) -> None:
    model, gpm = classifier(), GPMTrainerCallback(threshold=0.97)
    train(model, task(0), [gpm], arguments(tmp_path))
    before = weights(model)
    args = arguments(
        tmp_path, max_steps=1, optim="sgd", learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=1e-3
    )
    train(model, task(1), [gpm], args)
    step = torch.cat([(now - then).flatten() for now, then in zip(weights(model), before, strict=True)]).norm()
    assert step == pytest.approx(1e-3, rel=1e-2)
    assert args.max_grad_norm == 1e-3


def test_a_resumed_task_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    model, gpm = classifier(), GPMTrainerCallback(threshold=ENERGY)
    train(model, task(0), [gpm], arguments(tmp_path))
    args = arguments(tmp_path, save_strategy="steps", save_steps=2)
    train(model, task(1), [gpm], args)
    folder = tmp_path / "checkpoint-2"
    assert (folder / "memory.safetensors").is_file()
    resumed, fresh = classifier(), GPMTrainerCallback(threshold=ENERGY)
    train(resumed, task(1), [fresh], args, resume_from_checkpoint=str(folder))
    assert len(fresh.memory) == 2
    assert all(map(torch.equal, weights(model), weights(resumed)))
    for name, subspace in gpm.memory.subspaces.items():
        assert torch.equal(subspace.basis, fresh.memory.subspaces[name].basis)  # type: ignore[union-attr]
    (folder / "memory.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"GPMTrainerCallback\(GPM.load"):
        train(classifier(), task(1), [GPMTrainerCallback()], args, resume_from_checkpoint=str(folder))


def test_a_checkpoint_of_an_earlier_task_is_refused(tmp_path: Path) -> None:
    model, gpm = classifier(), GPMTrainerCallback(threshold=ENERGY)
    args = arguments(tmp_path, save_strategy="steps", save_steps=2)
    train(model, task(0), [gpm], args)
    with pytest.raises(
        ValueError, match=r"earlier task: its memory holds 0 task\(s\), and this callback has remembered 1"
    ):
        train(model, task(1), [gpm], args, resume_from_checkpoint=True)  # the newest one in the folder
    assert len(gpm.memory) == 1


def test_the_first_task_resumes_from_a_folder_elsewhere(tmp_path: Path) -> None:
    model, gpm = classifier(), GPMTrainerCallback(threshold=ENERGY)
    train(model, task(0), [gpm], arguments(tmp_path / "out", save_strategy="steps", save_steps=2))
    folder = (tmp_path / "out" / "checkpoint-2").rename(tmp_path / "elsewhere")
    resumed, fresh = classifier(), GPMTrainerCallback(threshold=ENERGY)
    args = arguments(tmp_path / "new", resume_from_checkpoint=str(folder))
    train(resumed, task(0), [fresh], args, resume_from_checkpoint=str(folder))
    assert all(map(torch.equal, weights(model), weights(resumed)))
    assert fresh.memory.report().as_dict() == gpm.memory.report().as_dict()


def test_the_best_weights_are_those_that_are_remembered(tmp_path: Path) -> None:
    model, gpm = classifier(), GPMTrainerCallback(threshold=ENERGY)
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    args = arguments(tmp_path, **options, metric_for_best_model="loss", greater_is_better=False)
    one = Trainer(model, args, train_dataset=task(0), eval_dataset=task(0), data_collator=collate, callbacks=[gpm])
    one.train()
    assert one.state.best_model_checkpoint.endswith("checkpoint-3")
    best = BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    anchors = gpm.memory.state_dict()["anchors"]
    assert all(torch.equal(anchor, best.get_parameter(name)) for name, anchor in anchors.items())


class Crash(transformers.TrainerCallback):  # type: ignore[name-defined,misc]
    def on_step_begin(self, args: Any, state: Any, control: Any, **its: Any) -> None:
        raise RuntimeError("the machine is switched off")


def test_a_crash_remembers_nothing_and_gives_max_grad_norm_back(tmp_path: Path) -> None:
    model, gpm, args = classifier(), GPMTrainerCallback(threshold=ENERGY), arguments(tmp_path)
    with pytest.raises(RuntimeError, match="switched off"):
        train(model, task(0), [gpm, Crash()], args)
    assert len(gpm.memory) == 0
    train(model, task(0), [gpm], args)
    assert len(gpm.memory) == 1
    assert args.max_grad_norm == 1.0


def test_a_callback_that_each_trainer_makes_for_itself_gives_a_warning(tmp_path: Path) -> None:
    model = classifier()
    train(model, task(0), [GPMTrainerCallback], arguments(tmp_path))
    with pytest.warns(UserWarning, match=r"Another GPMTrainerCallback has remembered 1 task\(s\) of this model"):
        train(model, task(1), [GPMTrainerCallback], arguments(tmp_path))


def test_batches_that_could_not_be_called_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"batches must be a function of \(\), and this one takes \(trainer\)"):
        GPMTrainerCallback(batches=lambda trainer: [])  # type: ignore[misc,arg-type]
    with pytest.raises(ValueError, match="samples is 'all'"):
        GPMTrainerCallback(samples="all")  # type: ignore[arg-type]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from task(0)


def test_an_endless_dataset_is_read_as_far_as_it_was_trained_on(tmp_path: Path) -> None:
    gpm = GPMTrainerCallback(threshold=ENERGY)
    train(classifier(), Stream(), [gpm], arguments(tmp_path, max_steps=3))
    assert len(gpm.memory) == 1


def test_a_language_model_with_tied_weights_is_protected(tmp_path: Path) -> None:
    def rows(number: int) -> list[dict[str, Any]]:
        return [{"input_ids": (ids := row["input_ids"] * 2), "labels": ids} for row in task(number, 8)]

    def collated(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        shortest = min(len(row["input_ids"]) for row in batch)
        ids = torch.tensor([row["input_ids"][:shortest] for row in batch])
        return {"input_ids": ids, "labels": ids}

    torch.manual_seed(0)
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=1, n_head=2, **quiet))
    gpm = GPMTrainerCallback(threshold=0.99)
    for number in range(2):
        args = arguments(tmp_path)
        Trainer(model, args, train_dataset=rows(number), data_collator=collated, callbacks=[gpm]).train()
    assert gpm.verification is not None
    assert not gpm.verification.leaking


def learn_on_two_ranks(rank: int, folder: Path, port: int) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({**{name: str(value) for name, value in names.items()}, "GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    model, gpm = classifier(), GPMTrainerCallback(threshold=ENERGY)
    for number in range(2):
        train(model, task(number), [gpm], arguments(folder / str(rank), ddp_backend="gloo"))
    assert torch.distributed.get_world_size() == 2
    assert gpm.verification is not None
    assert not gpm.verification.leaking
    gpm.memory.save(folder / f"rank{rank}.safetensors")
    torch.save(model.state_dict(), folder / f"weights{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_end_with_the_same_weights_and_memory(tmp_path: Path) -> None:
    equal_on_both_ranks(learn_on_two_ranks, tmp_path, classifier)


def test_a_plain_module_with_a_forward_of_its_own_is_remembered(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(40, 24, mode="mean"), nn.Linear(24, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.head(self.table(input_ids, per_sample_weights=None))
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits} if labels is not None else {}

    gpm = GPMTrainerCallback(unsupported="freeze", forward=lambda model, batch: model(**batch)["logits"])
    train(Own(), task(0), [gpm], arguments(tmp_path))
    assert len(gpm.memory) == 1
