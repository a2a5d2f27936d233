"""Text classification over three topics with HuggingFace's Trainer, learnt one after another.

A small BERT tells praise from complaint, first about films, then about hotels, then about phones. Some words are praise in one
topic and complaint in another, such as a dark scene and a dark room. The text is generated, and nothing is downloaded.
The same loop runs twice, plain and with Remnant's callback. Prints the accuracy on every topic after each of them.
"""

from __future__ import annotations

import random
import time
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
    set_seed,
)

from remnant.integrations.transformers import GPMTrainerCallback

# topic → (what is described, words of praise, words of complaint)
TOPICS = {
    "films": ("plot cast scene score ending", "moving long dark clever witty", "flat bright short dull shallow"),
    "hotels": ("room bed lobby view breakfast", "bright quiet fresh clean short", "dark long dirty noisy cold"),
    "phones": ("screen battery camera case speaker", "long flat quick bright sturdy", "short slow dark heavy cracked"),
}
EPOCHS = 5
FILLERS = ["and", "this", "was", "really", "very", "quite", "so", "i", "found", "that", "simply"]


def sentences(topic: str, count: int, seed: int) -> list[tuple[str, int]]:
    """Sentences about a topic, and whether they praise it."""
    rng = random.Random(f"{topic} {seed}")
    things, *words = (text.split() for text in TOPICS[topic])
    rows = []
    for number in range(count):
        good = number % 2
        parts = [rng.choice(things), "was", rng.choice(words[1 - good])]
        parts += [*rng.sample(FILLERS, rng.randint(0, 3)), "and", rng.choice(things), rng.choice(words[1 - good])]
        rows.append((" ".join(parts), good))
    return rows


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {word for texts in TOPICS.values() for text in texts for word in text.split()} | {*FILLERS, "was"}
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *sorted(words)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def encode(tokenizer: PreTrainedTokenizerFast, rows: list[tuple[str, int]]) -> list[dict[str, object]]:
    return [{**tokenizer(text), "labels": label} for text, label in rows]


def accuracy(trainer: Trainer, dataset: list[dict[str, object]]) -> float:
    prediction = trainer.predict(dataset)
    return float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())


def learn(folder: str, *callbacks: TrainerCallback) -> list[list[float]]:
    set_seed(0)
    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes))
    tests = [encode(tokenizer, sentences(topic, 200, seed=1)) for topic in TOPICS]
    matrix = []
    for number, topic in enumerate(TOPICS):
        arguments = TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=encode(tokenizer, sentences(topic, 400, seed=0)),
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=list(callbacks),  # the same callback in every task
        )
        trainer.remove_callback(PrinterCallback)  # it prints metrics after each task
        trainer.train()
        matrix.append([accuracy(trainer, test) for test in tests[: number + 1]])
    return matrix


def show(title: str, matrix: list[list[float]]) -> None:
    print(f"\n{title}")
    for topic, row in zip(TOPICS, matrix, strict=True):
        cells = ", ".join(f"{name} {100 * value:5.1f} %" for name, value in zip(TOPICS, row, strict=False))
        print(f"after {topic:<7} {cells}")


def main() -> None:
    torch.set_num_threads(1)  # small layers: a second thread would slow them down
    logging.set_verbosity_error()
    start = time.perf_counter()
    gpm = GPMTrainerCallback(threshold=0.97)
    with TemporaryDirectory() as folder:
        plain, kept = learn(folder), learn(folder, gpm)
    show("Plain fine-tuning", plain)
    show("With GPMTrainerCallback", kept)
    gain = 100 * (sum(kept[-1]) - sum(plain[-1])) / len(TOPICS)
    seconds = time.perf_counter() - start
    print(f"\n{gain:+.1f} points of average accuracy after {len(TOPICS)} topics, in {seconds:.0f} s for both.")


if __name__ == "__main__":
    main()
