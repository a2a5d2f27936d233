"""A user's own stream works like a built-in one: its splits are right, and mistakes are explained before they reach a loss."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from originals import picture, write_tree
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from remnant.data import DataError, Stream, load_stream
from remnant.errors import UserError

Pair = tuple[np.ndarray, np.ndarray]


def pair(
    count: int = 20, classes: int = 2, shape: tuple[int, ...] = (4,), first: int = 0, dtype: type = np.float64
) -> Pair:
    x = np.arange(count * int(np.prod(shape))).reshape(count, *shape)
    return x.astype(dtype), first + np.arange(count) % classes


# --- arrays -------------------------------------------------------------------------------------------------------


@given(st.integers(5, 60), st.integers(2, 4), st.floats(0.1, 0.5), st.floats(0, 0.4), st.integers(0, 9))
def test_held_out_examples_are_each_in_exactly_one_split(
    count: int, classes: int, test: float, valid: float, seed: int
) -> None:
    count = max(count, 10)
    x, y = pair(count, classes)
    task = Stream.from_arrays([(x, y)], test, valid=valid, seed=seed)[0]
    seen = torch.cat([task.train.x, task.valid.x, task.test.x])[:, 0]
    assert sorted(seen.tolist()) == x[:, 0].tolist()
    labels = torch.cat([task.train.y, task.valid.y, task.test.y])
    assert torch.equal(labels, (seen / 4).long() % classes)  # each still under its own label
    assert len(task.test) == int(count * test + 1e-9)


def test_given_parts_are_kept_as_given() -> None:
    train, test, valid = pair(20), pair(7), pair(3)
    task = Stream.from_arrays([train], [test], valid=[valid])[0]
    for split, (x, y) in ((task.train, train), (task.test, test), (task.valid, valid)):
        assert np.array_equal(split.x.numpy(), x)
        assert split.x.dtype == torch.float32
        assert split.y.tolist() == y.tolist()


def test_head_sizes_are_read_off_the_labels() -> None:
    multi = Stream.from_arrays([pair(classes=2), pair(classes=5)])
    assert (multi.head, multi.head_sizes, multi.classes) == ("multi", (2, 5), 7)
    single = Stream.from_arrays([pair(classes=2), pair(classes=3, first=2)], head="single")
    assert (single.head, single.head_sizes) == ("single", (5,))
    assert [task.classes for task in single] == [2, 3]
    assert Stream.from_arrays([pair(classes=1), pair(classes=1, first=1)], head="single").head_sizes == (2,)
    assert Stream.from_arrays([pair()], classes=4).head_sizes == (4,)


def test_bytes_become_numbers_up_to_one_and_tokens_stay_whole() -> None:
    x = np.array([[0, 255], [51, 102]] * 5, np.uint8)
    scaled = Stream.from_arrays([(x, np.arange(10) % 2)], [(x, np.arange(10) % 2)])[0].train.x
    assert torch.allclose(scaled[:2], torch.tensor([[0.0, 1.0], [0.2, 0.4]]))
    tokens = torch.randint(0, 99, (10, 6))
    assert Stream.from_arrays([(tokens, torch.arange(10) % 2)])[0].train.x.dtype == torch.int64


def test_relabel_numbers_each_tasks_classes_from_zero_and_remembers_them() -> None:
    stream = Stream.from_arrays([pair(classes=2, first=7), pair(classes=3, first=4)], relabel=True)
    assert [task.labels for task in stream] == [(7, 8), (4, 5, 6)]
    assert stream.head_sizes == (2, 3)
    assert set(stream[1].train.y.tolist()) == {0, 1, 2}
    one = Stream.from_arrays([pair(classes=2, first=7), pair(classes=2, first=70)], relabel=True, head="single")
    assert one.head_sizes == (4,)
    assert set(one[1].train.y.tolist()) == {2, 3}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Stream.from_arrays([]), "at least one task"),
        (lambda: Stream.from_arrays([pair(), pair(0)]), "task 2, train: there are no examples"),
        (lambda: Stream.from_arrays([pair(3)], 0.1), "has no test examples"),
        (lambda: Stream.from_arrays([pair(), pair(shape=(5,))]), "task 2, train: an example has shape (5,), but in"),
        (lambda: Stream.from_arrays([pair()], [pair(shape=(2, 2))]), "task 1, test: an example has shape (2, 2)"),
        (lambda: Stream.from_arrays([(np.zeros((4, 2)), np.zeros(3, int))]), "4 examples but 3 labels"),
        (lambda: Stream.from_arrays([(np.zeros(4), np.zeros(4, int))]), "one row, or one image, per example"),
        (lambda: Stream.from_arrays([(np.zeros((4, 2)), np.zeros(4))]), "labels are torch.float64; expected whole numbers"),
        (lambda: Stream.from_arrays([(np.zeros((4, 2)), np.zeros((4, 3), int))]), "one whole number per example"),
        (lambda: Stream.from_arrays([np.zeros((4, 2))]), "expected a pair (x, y), got ndarray"),
        (lambda: Stream.from_arrays([pair(), pair(first=2)]), "task 2, train: labels 2, 3 lie outside a head of 2 classes"),
        (lambda: Stream.from_arrays([pair()], [pair(classes=3)]), "task 1, test: label 2 lies outside the head"),
        (lambda: Stream.from_arrays([pair(first=-1)], head="single"), "label -1 lies outside the head"),
        (lambda: Stream.from_arrays([pair(), pair(classes=1)]), "has one class, so a head of its own"),
        (lambda: Stream.from_arrays([pair(), pair()], [pair()]), "2 tasks have train examples but 1 have test ones"),
        (lambda: Stream.from_arrays([pair()], head="many"), "'single' or 'multi'"),
        (lambda: Stream.from_arrays([pair()], classes=[2, 2]), "one per task"),
        (lambda: Stream.from_arrays([pair()], 1.5), "test=1.5: the share of training examples held out lies in 0 … 1"),
        (lambda: Stream.from_arrays([pair()], [pair()], valid=-1.0), "valid=-1.0: the share of training examples held out"),
        (lambda: Stream.from_arrays([pair()], 0.5, valid=0.5), "has no train examples"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_once(make: Callable[[], Stream], words: str) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert words in str(caught.value)


# --- torch Datasets -----------------------------------------------------------------------------------------------


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """Counts how often it is read."""

    def __init__(self, count: int, classes: int = 2) -> None:
        self.count, self.classes, self.reads = count, classes, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        self.reads += 1
        return torch.full((1, 3, 3), float(i)), i % self.classes


def test_datasets_become_tensors_in_their_order() -> None:
    stream = Stream.from_datasets([Squares(6), Squares(9, 3)], [Squares(4), Squares(6, 3)], valid=0.34)
    assert (stream.input_shape, stream.head_sizes) == ((1, 3, 3), (2, 3))
    assert stream[1].test.x[:, 0, 0, 0].tolist() == list(range(6))
    assert stream[1].test.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert (len(stream[1].train), len(stream[1].valid)) == (6, 3)


def test_with_classes_given_a_dataset_is_read_once_and_only_when_used() -> None:
    train, test = [Squares(6), Squares(6)], [Squares(4), Squares(4)]
    stream = Stream.from_datasets(train, test, classes=2)
    assert train[1].reads <= 1  # one example tells the shape
    assert stream[1].train.x.shape == (6, 1, 3, 3)
    assert stream[1].train.y.shape == (6,)
    assert train[1].reads <= 7
    assert train[0].reads <= 1


def test_labels_outside_a_given_head_are_told_before_they_reach_a_loss() -> None:
    stream = Stream.from_datasets([Squares(6, 3)], [Squares(6)], classes=2)
    for read in (lambda: stream[0].train.x, lambda: stream[0].train.y):
        with pytest.raises(DataError, match="label 2 lies outside the head"):
            read()


class Endless(IterableDataset[tuple[torch.Tensor, int]]):
    """Has no length."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return iter(())


class Pictures(Squares):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return "a picture", 0  # type: ignore[return-value]


class Ragged(Squares):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(1 + i // 3), i % 2


class Rows(Squares):
    """Its examples are dicts, as those of HuggingFace datasets."""

    def __init__(self, *columns: str) -> None:
        super().__init__(6)
        self.columns = columns

    def __getitem__(self, i: int) -> dict[str, object]:  # type: ignore[override]
        x, y = super().__getitem__(i)
        return {name: y if number else x for number, name in enumerate(self.columns)}


def test_rows_may_be_dicts() -> None:
    for columns in (("x", "y"), ("image", "label"), ("pixel_values", "labels", "attention_mask")):
        task = Stream.from_datasets([Rows(*columns)], [Rows(*columns)])[0]
        assert task.train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert task.train.y.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (Endless(), "Endless has no length"),
        (Pictures(4), "example 0 is a str; give the Dataset a transform that makes tensors"),
        (Ragged(6), "example 3 has shape (2,), the first (1,)"),
        (Squares(0), "there are no examples"),
        (TensorDataset(torch.zeros(4, 2)), "is not a pair (x, label)"),
        (Rows("image", "lable"), "example 0: no column is called y, label, labels"),
        (Rows("image", "label", "target"), "label, target could all be y"),
    ],
)
def test_a_dataset_that_cannot_be_used_says_why(train: Dataset[tuple[torch.Tensor, int]], words: str) -> None:
    with pytest.raises(DataError) as caught:
        Stream.from_datasets([train], [train])
    assert words in str(caught.value)


# --- a folder of images -------------------------------------------------------------------------------------------


def tiles(value: int, side: int = 6, colour: bool = True) -> bytes:
    return picture(np.full((side, side, 3) if colour else (side, side), value, np.uint8))


def image_folder(path: Path, **tasks: dict[str, int]) -> Path:
    files = {}
    for task, classes in tasks.items():
        for part, count in (("train", 4), ("test", 2)):
            for name, value in classes.items():
                files |= {f"{task}/{part}/{name}/{i}.png": tiles(value) for i in range(count)}
    return write_tree(path, files)


def test_a_folder_of_images_is_a_stream(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "zoo", task01={"cat": 0, "ant": 255}, task02={"bee": 51, "cow": 102, "dog": 153})
    stream = Stream.from_folder(folder, valid=0.25)
    assert (stream.name, [t.name for t in stream]) == ("zoo", ["task01", "task02"])
    assert (stream.input_shape, stream.head_sizes) == ((3, 6, 6), (2, 3))
    first = stream[0]
    assert (len(first.train), len(first.valid), len(first.test)) == (6, 2, 4)
    assert first.test.y.tolist() == [0, 0, 1, 1]
    assert first.test.x[:, 0, 0, 0].tolist() == [1.0, 1.0, 0.0, 0.0]  # ant before cat


def test_in_a_single_head_folder_stream_one_name_is_one_class(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "zoo", task1={"cat": 0, "dog": 9}, task2={"ant": 1}, task3={"dog": 9})
    stream = Stream.from_folder(folder, head="single")
    assert stream.head_sizes == (3,)
    assert [set(task.train.y.tolist()) for task in stream] == [{1, 2}, {0}, {2}]


def test_a_valid_folder_and_grey_images_are_kept(tmp_path: Path) -> None:
    files = {f"task1/{p}/{c}/0.png": tiles(9, colour=False) for p in ("train", "valid", "test") for c in "ab"}
    stream = Stream.from_folder(write_tree(tmp_path, files))
    assert stream.input_shape == (1, 6, 6)
    assert len(stream[0].valid) == 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no pictures in CLASS/, TASK/CLASS/"),
        ({"0.png": 1}, "0.png: a picture lies in CLASS/, TASK/CLASS/"),
        ({"a/0.png": 1, "task1/a/0.png": 1}, "all pictures of a stream in the same one"),
        ({"a/0.png": 1, "test/a/0.png": 1}, "all pictures of a stream in the same one"),
        ({"test/a/0.png": 1, "test/b/0.png": 1}, "has no train part, only test"),
        (
            {"a/0.png": 1, "b/0.png": 1, "c/0.png": 1},
            "has 3 classes. Say how many tasks they make: --set stream.tasks=",
        ),
        ({"task1/train/a/0.png": 1, "task1/train/b/0.png": 1}, "has no test examples"),
        ({f"task1/{p}/a/0.png": 1 for p in ("train", "test")}, "has one class"),
        (
            {f"task1/{p}/{c}/0.png": 1 for p in ("train", "test") for c in "ab"} | {"task1/test/c/0.png": 1},
            "has the class 'c', which",
        ),
    ],
)
def test_a_folder_that_is_no_stream_says_what_is_missing(files: dict[str, int], words: str, tmp_path: Path) -> None:
    write_tree(tmp_path, {name: tiles(value) for name, value in files.items()})
    with pytest.raises(DataError) as caught:
        Stream.from_folder(tmp_path)
    assert words in str(caught.value)


def test_images_of_several_sizes_are_refused_or_brought_to_one(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, task1={"a": 0, "b": 1})
    (folder / "task1/train/b/3.png").write_bytes(tiles(5, side=9))
    with pytest.raises(DataError, match=r"9 × 9, the first image 6 × 6. Pass size=\(6, 6\)"):
        assert Stream.from_folder(folder)[0].train.x is not None
    assert Stream.from_folder(folder, size=(5, 7))[0].train.x.shape == (8, 3, 5, 7)
    (folder / "task1/train/b/2.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"2.png is not a readable image"):
        assert Stream.from_folder(folder, size=(5, 7))[0].train.x is not None


# --- a file of one's own ------------------------------------------------------------------------------------------

OWN = """
import numpy as np
from helper import CLASSES
from remnant.data import Stream

def pairs(tasks):
    return [(np.zeros((10, 3)), np.arange(10) % CLASSES) for _ in range(tasks)]

ready = Stream.from_arrays(pairs(2), name="mine")
number = 3

def made(seed, tasks=2):
    return Stream.from_arrays(pairs(tasks), seed=seed, name="mine")

def seedless(tasks=1):
    return Stream.from_arrays(pairs(tasks))

def open_ended(tasks=1, **rest):
    assert rest == {"seed": 5, "colour": "red"}
    return Stream.from_arrays(pairs(tasks))

def wrong():
    return pairs(1)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    write_tree(tmp_path, {"own.py": OWN.encode(), "helper.py": b"CLASSES = 2\n", "broken.py": b"1 / 0\n"})
    return str(tmp_path / "own.py")


def test_a_stream_or_a_function_in_ones_own_file_is_loaded_by_name(own: str) -> None:
    assert load_stream(f"{own}:ready").name == "mine"
    stream = load_stream(f"{own}:made", seed=5, tasks=4)
    assert (len(stream), stream.seed, stream.options) == (4, 5, {"tasks": 4})
    assert len(load_stream(f"{own}:seedless", seed=5)) == 1
    assert load_stream(f"{own}:open_ended", seed=5, tasks=3, colour="red").options == {"tasks": 3, "colour": "red"}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("maed", {}, "has no 'maed'. Did you mean 'made'"),
        ("made", {"task": 3}, "no such option of '{own}:made'. Did you mean 'tasks'?"),
        ("ready", {"tasks": 3}, "takes no options"),
        ("number", {}, "must be a Stream or a function that returns one, and is "),
        ("wrong", {}, "must return a remnant.data.Stream, and returned ["),
    ],
)
def test_a_wrong_name_in_ones_own_file_is_explained(
    own: str, name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_stream(f"{own}:{name}", **options)
    assert words.replace("{own}", own) in str(caught.value)


def test_a_file_that_is_not_there_or_does_not_run_is_named(own: str) -> None:
    with pytest.raises(UserError, match=r"There is no file nowhere.py"):
        load_stream("nowhere.py:made")
    with pytest.raises(UserError, match=r"broken.py could not be run: ZeroDivisionError"):
        load_stream(own.replace("own.py", "broken.py:made"))
