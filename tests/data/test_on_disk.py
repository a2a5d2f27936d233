"""Data on disk is a stream without a Python file: pictures, an .npz file, a saved HuggingFace dataset."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from originals import picture, write_tree

from remnant.data import DataError, load_stream
from remnant.errors import UserError
from remnant.files import fingerprint


def shade(value: int, side: int = 6) -> np.ndarray:
    return np.full((side, side, 3), value, np.uint8)


def test_folders_of_classes_are_divided_into_tasks(tmp_path: Path) -> None:
    files = {f"{c}/{i}.png": picture(shade(10 * n + i)) for n, c in enumerate("abcde") for i in range(5)}
    stream = load_stream(f"{write_tree(tmp_path, files)}/", seed=3, tasks=2, test=0.2, valid=0.2)
    assert [task.name for task in stream] == ["a, b, c", "d, e"]
    assert [(len(t.train), len(t.valid), len(t.test)) for t in stream] == [(10, 2, 3), (7, 1, 2)]
    for task, first in zip(stream, (0, 3), strict=True):
        x = torch.cat([task.train.x, task.valid.x, task.test.x])[:, 0, 0, 0] * 255
        y = torch.cat([task.train.y, task.valid.y, task.test.y])
        assert torch.equal(x.round().long() // 10, y + first)  # each under its own label
        assert len(x.unique()) == len(x)  # each in one part only
    shuffled = load_stream(f"{tmp_path}/", seed=3, tasks=5, class_order="shuffled", head="single")
    assert sorted(task.name for task in shuffled) == list("abcde")
    assert [task.name for task in shuffled] != list("abcde")
    assert shuffled.head_sizes == (5,)
    assert [set(task.train.y.tolist()) for task in shuffled] == [{"abcde".index(task.name)} for task in shuffled]


@pytest.mark.parametrize("layout", ["{task}/{part}/{c}/{i}.png", "{part}/{task}/{c}/{i}.png"])
def test_folders_of_tasks_and_parts_are_understood_in_any_order(layout: str, tmp_path: Path) -> None:
    files = {
        layout.format(task=task, part=part, c=c, i=i): picture(shade(i))
        for task in ("one", "two")
        for part, count in (("train", 3), ("val", 1), ("test", 2))
        for c in ("train", "zebra")  # the folder of a picture is a class, whatever it is called
        for i in range(count)
    }
    stream = load_stream(f"{write_tree(tmp_path, files)}/")
    assert [task.name for task in stream] == ["one", "two"]
    assert [(len(t.train), len(t.valid), len(t.test)) for t in stream] == [(6, 2, 4)] * 2


def arrays(count: int = 12) -> dict[str, np.ndarray]:
    return {"x": np.arange(count * 4).reshape(count, 4), "y": np.arange(count) % 4}


def saved(tmp_path: Path, **columns: Any) -> str:
    np.savez(tmp_path / "data.npz", **columns)
    return str(tmp_path / "data.npz")


def test_an_npz_file_is_divided_by_classes_or_by_its_task_column(tmp_path: Path) -> None:
    by_class = load_stream(saved(tmp_path, **arrays()), tasks=2)
    assert [task.labels for task in by_class] == [(0, 1), (2, 3)]
    assert {int(row) // 4 % 4 for row in by_class[1].train.x[:, 0]} <= {2, 3}
    by_task = load_stream(saved(tmp_path, **arrays(), task=np.arange(12) // 4), test=0.25)
    assert [task.name for task in by_task] == ["task 0", "task 1", "task 2"]
    assert sorted(by_task[1].train.x[:, 0].tolist() + by_task[1].test.x[:, 0].tolist()) == [16, 20, 24, 28]


def test_keys_name_the_part_and_other_keys_can_be_chosen(tmp_path: Path) -> None:
    images = np.zeros((8, 5, 6, 3), np.uint8)
    labels = np.array([["ant"], ["bee"], ["cow"], ["dog"]] * 2)
    path = saved(tmp_path, train_images=images, train_labels=labels, val_images=images, val_labels=labels,
                 test_images=images[:4], test_labels=labels[:4], about=np.array("a note"))  # fmt: skip
    stream = load_stream(path, tasks=2)
    assert stream.input_shape == (3, 5, 6)
    assert [(len(t.train), len(t.valid), len(t.test)) for t in stream] == [(4, 4, 2)] * 2
    grey = saved(tmp_path, pixels=images[..., 0], digit=np.arange(8) % 4, when=np.arange(8) // 4)
    assert len(load_stream(grey, x="pixels", y="digit", task="when", test=0.5)) == 2
    assert load_stream(grey, x="pixels", y="digit", tasks=2, test=0.5).input_shape == (1, 5, 6)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"y": np.arange(4)}, {}, "train: no column is called x, image, images"),
        ({"x": np.zeros((4, 2))}, {}, "no column is called y, label"),
        (arrays() | {"data": np.zeros((4, 2))}, {}, "x, data could all be x. Choose one: --set stream.x=…"),
        (arrays(), {"x": "z"}, "x=z: there is no such column. There are x, y."),
        (arrays(), {"task": "when"}, "task=when: there is no such column"),
        (arrays(), {}, "has 4 classes. Say how many tasks they make: --set stream.tasks=2"),
        (arrays(), {"tasks": 5}, "has 4 classes, too few for tasks=5. Say how many tasks"),
        (arrays(), {"tasks": 4, "test": 0.4}, "has one class"),
        (arrays(), {"tasks": 2, "size": [8, 8]}, "size=[8, 8]: "),
        (arrays() | {"task": np.arange(12) // 6}, {"tasks": 2}, "already says which task an example belongs to"),
        (arrays() | {"y": np.arange(11)}, {"tasks": 2}, "12 examples, but 11 values of y"),
        (arrays() | {"y": np.arange(12.0)}, {"tasks": 2}, "y is float64 of shape (12,); expected one whole number or name"),
        (arrays() | {"x": np.zeros(12)}, {"tasks": 2}, "x is float64 of shape (12,); expected numbers"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, {"tasks": 2}, "has no examples"),
        (arrays() | {"x_test": np.zeros((4, 3)), "y_test": np.arange(4)}, {"tasks": 2}, "an example has shape (3,)"),
        (arrays() | {"x_test": np.zeros((4, 4)), "y_test": np.arange(4) + 1}, {"tasks": 2}, "has the class '4', which"),
        ({"x_test": np.zeros((4, 4)), "y_test": np.arange(4)}, {"tasks": 2}, "has no train part, only test"),
        (arrays() | {"x_tset": np.zeros((4, 4)), "y_test": np.arange(4)}, {"tasks": 2}, "test: no column is called x"),
        (arrays() | {"x_tset": np.zeros((4, 4)), "y_tset": np.arange(4)}, {"tasks": 2}, "'x_tset'. Did you mean 'x_test'?"),
        (arrays() | {"tset_x": np.zeros((4, 4)), "tset_y": np.arange(4)}, {"tasks": 2}, "'tset_x'. Did you mean 'test_x'?"),
        (arrays() | {"vaild_x": np.zeros((4, 4))}, {"tasks": 2}, "Did you mean 'valid_x'?"),
        (arrays() | {"tsak": np.arange(12) // 4}, {"tasks": 2}, "'tsak'. Did you mean 'task'? Rename it, or say which"),
        (arrays() | {"x_tset": np.zeros((4, 4))}, {"x": "x", "y": "y", "tasks": 2}, "Did you mean 'x_test'?"),
        ({"x": np.array([{}, {}]), "y": np.arange(2)}, {"tasks": 1}, "is not a readable .npz file of arrays"),
    ],
)  # fmt: skip
def test_an_npz_file_that_is_no_stream_says_why(
    columns: dict[str, np.ndarray], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        load_stream(saved(tmp_path, **columns), **options)
    assert words in str(caught.value)


def test_keys_that_are_like_no_missing_one_are_ignored(tmp_path: Path) -> None:
    more = {"x_test": np.zeros((4, 4)), "y_test": np.arange(4), "classes": np.arange(4), "label_names": np.arange(4)}
    path = saved(tmp_path, **arrays(), **more, ids=np.arange(12), mean=np.zeros(4), y_train_fine=np.arange(12))
    assert len(load_stream(path, tasks=2)) == 2
    masks = saved(tmp_path, **arrays(), mask=np.zeros((12, 4)))
    assert len(load_stream(masks, x="x", y="y", tasks=2)) == 2


def test_a_class_that_another_task_trains_is_refused(tmp_path: Path) -> None:
    train = {"x": np.zeros((8, 4)), "y": np.arange(8) // 2, "task": np.arange(8) // 4}
    test = {"x_test": np.zeros((4, 4)), "y_test": np.array([0, 1, 2, 1]), "task_test": np.array([0, 0, 1, 1])}
    with pytest.raises(DataError, match="has the class '1', which the train part of 'task 1' does not have"):
        load_stream(saved(tmp_path, **train, **test))
    with pytest.raises(DataError, match="has the task '2', which"):
        load_stream(saved(tmp_path, **train, **test | {"task_test": np.array([0, 0, 1, 2])}))


def test_a_path_that_is_not_there_and_an_option_that_does_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder nowhere/, nor an .npz file of that name"):
        load_stream("nowhere/")
    with pytest.raises(UserError, match=r"no such option of .*\. Did you mean 'tasks'?"):
        load_stream(saved(tmp_path, **arrays()), taks=2)
    with pytest.raises(UserError, match="is the folder you are in, or holds it"):
        load_stream("../")
    for junk in (b"PK\x03\x04 not a zip", b"junk", b""):
        (tmp_path / "broken.npz").write_bytes(junk)
        with pytest.raises(UserError, match=r"is not a readable .npz file: np.savez\(path, x=…, y=…\) writes one"):
            load_stream(str(tmp_path / "broken.npz"), tasks=2)


def test_a_fingerprint_changes_with_the_data(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/0.png": b"1", "a/1.png": b"22"})
    before = fingerprint(tmp_path), fingerprint(tmp_path / "a/1.png")
    (tmp_path / "a/1.png").write_bytes(b"333")
    after = fingerprint(tmp_path), fingerprint(tmp_path / "a/1.png")
    assert not set(before) & set(after)
    with pytest.raises(OSError, match="nowhere"):
        fingerprint(tmp_path / "nowhere")


# --- HuggingFace datasets ---------------------------------------------------------------------------------------------


def test_a_dataset_saved_to_disk_is_a_stream(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    pictures = [Image.fromarray(shade(10 * n, side=6 + n % 2)) for n in range(12)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcd"))})
    data = datasets.Dataset.from_dict({"image": pictures, "label": [n % 4 for n in range(12)]}, features=features)
    datasets.DatasetDict({"train": data, "validation": data.select(range(4)), "test": data}).save_to_disk(
        tmp_path / "d"
    )
    stream = load_stream(f"{tmp_path}/d/", tasks=2, size=[5, 7])
    assert stream.input_shape == (3, 5, 7)
    assert [(len(t.train), len(t.valid), len(t.test)) for t in stream] == [(6, 2, 6)] * 2
    assert (stream[1].train.x[:, 0, 0, 0] * 25.5).round().tolist() == [2, 3, 6, 7, 10, 11]
    assert stream[1].train.y.tolist() == [0, 1] * 3
    with pytest.raises(DataError, match="picture 1 is 7 × 7, the first image 6 × 6"):
        assert load_stream(f"{tmp_path}/d/", tasks=2)[0].train.x is None


def test_tokens_of_a_saved_dataset_stay_whole_and_text_is_refused(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {
        "input_ids": [[n, n + 1, 0] for n in range(12)],
        "label": ["no", "yes"] * 6,
        "task": ["a"] * 6 + ["b"] * 6,
    }
    data = datasets.Dataset.from_dict(columns | {"text": ["a word"] * 12})
    data.save_to_disk(tmp_path / "tokens")
    stream = load_stream(f"{tmp_path}/tokens/", test=0.5)
    assert [task.name for task in stream] == ["a", "b"]
    assert stream[1].train.x.dtype == torch.int64
    assert sorted(torch.cat([stream[1].train.x, stream[1].test.x])[:, 0].tolist()) == [6, 7, 8, 9, 10, 11]
    with pytest.raises(DataError, match="text is text, or its examples have several lengths"):
        load_stream(f"{tmp_path}/tokens/", x="text")


def test_without_the_library_a_saved_dataset_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    write_tree(tmp_path, {"dataset_info.json": b"{}"})
    with pytest.raises(DataError, match=r"pip install datasets"):
        load_stream(f"{tmp_path}/")
