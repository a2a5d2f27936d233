"""Gradient Projection Memory for Avalanche: a plugin for its strategies, and streams from and to its benchmarks."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from avalanche.benchmarks import OnlineCLExperience, benchmark_from_datasets, with_classes_timeline, with_task_labels
from avalanche.benchmarks.utils import AvalancheDataset, ConstantSequence, DataAttribute
from avalanche.models import avalanche_forward
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from remnant.data import Split, Stream
from remnant.memory import GPM

from .task_memory import Forward, TaskMemory


class GPMPlugin(TaskMemory, SupervisedPlugin):
    """Remembers each experience that a strategy trains on, and protects it in the following ones.

    Before an experience, the plugin attaches its memory to the optimizer. After it, the plugin proves that the old experiences
    were protected (`memory.verify()`) and remembers the new one, by the batches that it was trained on.

    Args:
        memory: A memory to continue with, such as `GPM.load("memory.safetensors", model)`.
        samples: How many examples of each experience to use; all by default. See `GPM.consolidate`.
        forward: A function (model, batch) that calls the model. By default it is called as Avalanche calls it.
        options: The options of `GPM`, such as `threshold`, for a new memory. Exclude heads that grow:
            `exclude=["classifier.*"]`.

    Example:
        >>> gpm = GPMPlugin(threshold=0.97)
        >>> strategy = Naive(model=model, optimizer=optimizer, plugins=[gpm])  # doctest: +SKIP
        >>> for experience in benchmark.train_stream:  # doctest: +SKIP
        ...     strategy.train(experience)
    """

    def __init__(
        self, memory: GPM | None = None, *, samples: int | None = None, forward: Forward | None = None, **options: Any
    ) -> None:
        super().__init__(memory, samples=samples, forward=forward or _forward, **options)

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Attaches the memory, after Avalanche has adapted the model and its optimizer."""
        if isinstance(strategy.experience, OnlineCLExperience):
            raise ValueError(
                "An online experience is only a part of a task, and GPM remembers whole tasks. Use the original benchmark."
            )
        self.begin_task(strategy.model, [strategy.optimizer])

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Remembers the experience."""
        self.finish_task(strategy.dataloader)


def _forward(model: nn.Module, batch: Sequence[Tensor]) -> object:
    return avalanche_forward(model, batch[0], batch[2]) if len(batch) > 2 else model(batch[0])


def to_avalanche(stream: Stream) -> Any:
    """Returns an Avalanche benchmark with the tasks of a stream as its experiences. All examples are read now.

    With a head per task, each experience has its number as task label, and labels count from 0 in each. With a single head,
    all have the task label 0. There are the streams train and test, and valid if every task has validation examples.

    Example:
        >>> stream = load_stream("permuted-digits", tasks=3)  # doctest: +SKIP
        >>> to_avalanche(stream).train_stream[0].classes_in_this_experience  # doctest: +SKIP
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    parts = ["train", "test"] + ["valid"] * all(len(task.valid) for task in stream)
    datasets = {
        part: [_dataset(getattr(task, part), number * (stream.head == "multi")) for number, task in enumerate(stream)]
        for part in parts
    }
    benchmark = with_task_labels(with_classes_timeline(benchmark_from_datasets(**datasets)))
    for experience in chain(*benchmark.streams.values()):
        # Avalanche makes this a set, by which its own MultiHeadClassifier cannot index.
        experience.classes_in_this_experience = sorted(experience.classes_in_this_experience)
    return benchmark


def _dataset(split: Split, task_label: int) -> Any:
    labels = [
        DataAttribute(split.y.tolist(), "targets"),
        DataAttribute(ConstantSequence(task_label, len(split)), "targets_task_labels", use_in_getitem=True),
    ]
    return AvalancheDataset([TensorDataset(split.x, split.y)], data_attributes=labels)


def from_avalanche(benchmark: Any, *, valid: float = 0.0, name: str = "avalanche", seed: int = 0) -> Stream:
    """Returns a stream with the experiences of an Avalanche benchmark as its tasks.

    With several task labels each task has its own head, and its labels count from 0; with one, there is a single head.

    Args:
        benchmark: A benchmark with a train and a test experience for each task. Its eval transforms must make tensors.
        valid: The share of train to hold out, if the benchmark has no stream `valid`.
        name: The name of the stream.
        seed: Chooses the examples that are held out.

    Raises:
        DataError: The experiences do not fit together. The message says which.
    """
    train, test = (
        [_Pairs(experience) for experience in part] for part in (benchmark.train_stream, benchmark.test_stream)
    )
    held_out = benchmark.streams.get("valid")
    task_labels = {label for experience in benchmark.train_stream for label in getattr(experience, "task_labels", ())}
    several = len(task_labels) > 1
    return Stream.from_datasets(
        train,
        test,
        valid=valid if held_out is None else [_Pairs(experience) for experience in held_out],
        head="multi" if several else "single",
        relabel=several,
        name=name,
        seed=seed,
    )


class _Pairs(Dataset[tuple[Any, int]]):
    """The examples of an experience as it is evaluated: (x, label), without the task label."""

    def __init__(self, experience: Any) -> None:
        self._examples = experience.dataset.eval()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        x, y, *_ = self._examples[index]
        return x, y
