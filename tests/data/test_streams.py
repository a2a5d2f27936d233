"""The built-in streams have the right pixels and labels, and depend on the seed alone."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from originals import REAL_ROOT, digits_like

from remnant.data import BENCHMARKS, BUILT_IN, DATASETS, DataError, Split, Stream, load_stream
from remnant.data.class_groups import FIVE, SUPERCLASS_ORDERS
from remnant.data.permuted import pmnist, rotation
from remnant.data.task_builder import CIFAR, normalise
from remnant.errors import UserError
from remnant.options import options_of

DIGITS = ("permuted-digits", "digits-incremental")


def cifar_like(per_class: int = 2) -> dict[str, np.ndarray]:
    """A small CIFAR-100 in which an image's bytes tell which class and which image it is."""
    rng = np.random.default_rng(5)
    arrays = {}
    for part in ("train", "test"):
        fine = rng.permutation(np.repeat(np.arange(100), per_class)).astype(np.uint8)
        images = rng.integers(0, 256, (len(fine), 32, 32, 3), np.uint8)
        images[:, 0, 0, 0] = fine
        # Superclasses do not follow the order of the fine labels.
        arrays |= {f"{part}_images": images, f"{part}_labels": fine, f"{part}_coarse": (fine * 7 % 20).astype(np.uint8)}
    return arrays


# --- names, options, seeds ----------------------------------------------------------------------------------------


def test_the_built_in_streams_are_those_promised() -> None:
    assert set(BENCHMARKS) == {
        "pmnist",
        "permuted-digits",
        "permuted-fashion",
        "rotated-mnist",
        "split-cifar100",
        "cifar100-superclass",
        "split-miniimagenet",
        "split-tinyimagenet",
        "five-datasets",
        "digits-incremental",
        "mnist-incremental",
    }
    for name, function in BENCHMARKS.items():
        assert (function.__doc__ or "").splitlines()[0].endswith("."), name
        assert BUILT_IN[name].datasets, name
        assert set(BUILT_IN[name].datasets) <= set(DATASETS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_shapes_known_without_data_are_those_of_the_stream(name: str, fake_sets: Callable[..., object]) -> None:
    pytest.importorskip("sklearn")
    fake_sets()
    known, stream = BUILT_IN[name], load_stream(name)
    assert (known.input_shape, known.head) == (stream.input_shape, stream.head)


def test_the_options_of_a_stream_are_its_signature() -> None:
    for function in BENCHMARKS.values():
        assert all(option.kind.words != "a number" for option in options_of(function).values())  # all have bounds
    order = options_of(BENCHMARKS["cifar100-superclass"])["order"]
    assert order.kind.words == "a whole number from 0 to 4, or 'seed' (the seed mod 5)"
    assert (order.kind.read("seed"), order.default) == ("seed", 0)
    stream = load_stream("digits-incremental")
    assert stream.options == {"class_order": "natural", "valid": 0.1}


def test_a_function_or_a_stream_can_be_given_as_an_object(fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like(30))
    by_name, by_function = load_stream("pmnist", seed=3, tasks=2), load_stream(pmnist, seed=3, tasks=2)
    assert torch.equal(by_name[1].train.x, by_function[1].train.x)
    again = load_stream(by_function, seed=9)
    assert (again.tasks, again.seed) == (by_function.tasks, 9)
    with pytest.raises(DataError, match="takes no options"):
        load_stream(by_function, tasks=3)
    with pytest.raises(UserError, match=r"no such option of 'pmnist'\. Did you mean 'tasks'"):
        load_stream(pmnist, task=3)


@given(name=st.sampled_from(DIGITS), first=st.integers(1, 10))
def test_first_leaves_out_later_tasks_and_changes_nothing_else(name: str, first: int) -> None:
    pytest.importorskip("sklearn")
    whole, part = load_stream(name, seed=1), load_stream(name, seed=1, first=first)
    assert len(part) == first
    assert part.head_sizes == whole.head_sizes
    assert part.options == {**whole.options, "first": first}
    assert torch.equal(part[first - 1].train.x, whole[first - 1].train.x)


def test_first_leaves_out_the_heads_of_later_tasks(fake_sets: Callable[..., object]) -> None:
    fake_sets(cifar100=cifar_like())
    whole = load_stream("split-cifar100")
    ready = load_stream(whole, first=2)
    assert ready.head_sizes == load_stream("split-cifar100", first=2).head_sizes == (10, 10)
    assert ready.tasks == whole.tasks[:2]
    assert load_stream(whole, first=None).tasks == whole.tasks


def test_first_must_be_a_number_of_tasks_that_there_are() -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(DataError, match="first=11: stream 'permuted-digits' has 10 tasks; choose 1 to 10 of them"):
        load_stream("permuted-digits", first=11)
    with pytest.raises(UserError, match="first=0: first takes a whole number from 1"):
        load_stream("permuted-digits", first=0)


def test_a_streams_own_option_of_that_name_is_its_own() -> None:
    def own(first: str = "a") -> Stream:
        return replace(load_stream("permuted-digits", tasks=2), name=first)

    pytest.importorskip("sklearn")
    assert load_stream(own, first="b").name == "b"
    assert len(load_stream(own)) == 2


def test_an_entry_point_is_a_stream_like_the_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    package = tmp_path / "blobs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: blobs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[remnant.streams]\nblobs = remnant.data.permuted:permuted_digits\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stream = load_stream("blobs", seed=4, tasks=3)
    assert (stream.name, len(stream), stream.seed, stream.options) == ("blobs", 3, 4, {"tasks": 3, "valid": 0.1})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: load_stream("pmnits"), "Did you mean 'pmnist'"),
        (lambda: load_stream("split_cifar100"), "Did you mean 'split-cifar100'"),
        (lambda: load_stream("permuted-digits", task=3), "no such option of 'permuted-digits'. Did you mean 'tasks'"),
        (lambda: load_stream("cifar100-superclass", layout="plannar"), "takes 'planar' or 'as-published'"),
        (
            lambda: load_stream("cifar100-superclass", order=5),
            "order=5: order takes a whole number from 0 to 4, or 'seed'",
        ),
        (lambda: load_stream("permuted-digits", tasks="ten"), "tasks='ten'"),
        (lambda: load_stream("permuted-digits", tasks=True), "tasks=True"),
        (lambda: load_stream("permuted-digits", valid=1.5), "valid=1.5"),
        (lambda: load_stream("permuted-digits", seed=-1), "seed=-1"),
        (lambda: load_stream("split-cifar100", tasks=7), "100 classes cannot be divided into 7 equal tasks"),
        (lambda: load_stream("split-cifar100", tasks=7), "sizes=[…], on the command line --set stream.sizes=[…]."),
        (lambda: load_stream("split-cifar100", tasks=100), "equal tasks of at least 2"),
        (lambda: load_stream("split-cifar100", sizes=[60, 60]), "ask for 120 classes"),
        (lambda: load_stream("split-cifar100", sizes=[1, 50]), "sizes=[1, 50]: sizes[0] takes a whole number from 2"),
        (lambda: load_stream("split-cifar100", class_order="random"), "takes 'natural' or 'shuffled'"),
        (lambda: load_stream("pmnist", pixels="raw"), "takes 'normalised' or 'unit'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    call: Callable[[], object], words: str, fake_sets: Callable[..., object]
) -> None:
    fake_sets(cifar100=cifar_like())
    with pytest.raises(UserError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize("name", DIGITS)
def test_one_seed_gives_one_stream_whatever_is_asked_first(name: str) -> None:
    pytest.importorskip("sklearn")
    forwards, backwards = load_stream(name, seed=4), load_stream(name, seed=4)
    late = [task.valid.x.clone() for task in reversed(backwards.tasks)][::-1]
    for task, x in zip(forwards, late, strict=True):
        assert torch.equal(task.valid.x, x)
    other = load_stream(name, seed=5)
    assert any(not torch.equal(a.valid.x, b.valid.x) for a, b in zip(forwards, other, strict=True))


def test_the_random_choices_are_the_same_on_every_machine(fake_sets: Callable[..., object]) -> None:
    """The numbers are frozen: a change here changes all our published results."""
    fake_sets(mnist=digits_like(40), cifar100=cifar_like(20))
    x = load_stream("pmnist", seed=2, valid=0.0)[1].test.x
    pixels = digits_like(40)["test_images"].reshape(10, -1)
    order = np.random.default_rng([2, 1_448_435_943, 1]).permutation(784)
    assert torch.allclose(x.flatten(1), torch.from_numpy((pixels[:, order] / 255 - 0.1307) / 0.3081).float(), atol=1e-5)
    assert load_stream("split-cifar100", seed=1, class_order="shuffled")[0].labels[:4] == (21, 52, 38, 39)


# --- permuted and rotated -----------------------------------------------------------------------------------------


def test_every_pmnist_task_is_its_own_permutation_of_the_same_images(fake_sets: Callable[..., object]) -> None:
    arrays = digits_like(30)
    fake_sets(mnist=arrays)
    stream = load_stream("pmnist", seed=0)
    plain = normalise(torch.from_numpy(arrays["test_images"]).unsqueeze(1), (0.1307,), (0.3081,))
    for task in stream:
        assert torch.equal(task.test.x.flatten(1).sort(1).values, plain.flatten(1).sort(1).values)
        assert not torch.equal(task.test.x, plain)  # the first task is permuted too
    assert len({tuple(task.test.x[0].flatten().tolist()) for task in stream}) == 10


def test_train_valid_and_test_of_a_task_share_its_permutation(fake_sets: Callable[..., object]) -> None:
    arrays = digits_like(30, 30)
    arrays["test_images"] = arrays["train_images"]
    fake_sets(mnist=arrays)
    task = load_stream("pmnist", seed=0)[3]
    assert torch.equal(torch.cat([task.valid.x, task.train.x]), task.test.x)  # valid: the first tenth, unshuffled
    assert torch.equal(torch.cat([task.valid.y, task.train.y]), torch.arange(30) % 10)


def test_unit_pixels_are_the_same_images_between_0_and_1(fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like(30))
    as_a_rule, unit = load_stream("pmnist", seed=0)[1], load_stream("pmnist", seed=0, pixels="unit")[1]
    assert 0 <= float(unit.test.x.min()) < 0.1
    assert 0.9 < float(unit.test.x.max()) <= 1
    assert torch.allclose((unit.train.x - 0.1307) / 0.3081, as_a_rule.train.x, atol=1e-5)


@pytest.mark.parametrize("degrees", [0.0, 90.0, 180.0, 270.0])
def test_a_turn_by_quarters_moves_whole_pixels(degrees: float) -> None:
    image = torch.randint(0, 256, (700, 1, 9, 9), dtype=torch.uint8)
    turned = rotation(9, degrees)(image)
    assert torch.allclose(turned, torch.rot90(image, int(degrees // 90), (2, 3)).float(), atol=1e-3)


@given(st.floats(0, 360))
def test_a_turn_neither_adds_light_nor_leaves_the_range(degrees: float) -> None:
    image = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    turned = rotation(28, degrees)(image)
    assert float(turned.min()) >= 0
    assert float(turned.max()) <= 255.01
    assert abs(float(turned[0, 0, 10:18, 10:18].mean()) - 255) < 0.01  # the middle stays full


def test_rotated_mnist_turns_further_with_every_task(fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like())
    angles = [float(task.name.split()[1].rstrip("°")) for task in load_stream("rotated-mnist", tasks=6, degrees=90)]
    assert angles == sorted(angles)
    assert all(15 * t - 0.1 <= angle <= 15 * (t + 1) + 0.1 for t, angle in enumerate(angles))


# --- splits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"tasks": 20}, {"sizes": [50, 10, 3]}, {"class_order": "shuffled"}])
def test_a_split_keeps_every_image_under_its_own_class(
    options: dict[str, object], fake_sets: Callable[..., object]
) -> None:
    fake_sets(cifar100=cifar_like(20))
    stream = load_stream("split-cifar100", seed=6, **options)
    seen: list[int] = []
    for task in stream:
        marks = []
        for split in (task.train, task.valid, task.test):
            mark = (split.x[:, 0, 0, 0] * CIFAR[1][0] + CIFAR[0][0]).mul(255).round().int()
            assert [task.labels[int(y)] for y in split.y] == mark.tolist()
            marks.append(mark)
        assert len(task.train) + len(task.valid) == 20 * task.classes
        assert len(task.valid) == task.classes  # 5 %
        seen += task.labels
    assert len(set(seen)) == len(seen) == sum(stream.head_sizes)


def test_cifar_tasks_are_the_labels_in_natural_order(fake_sets: Callable[..., object]) -> None:
    fake_sets(cifar100=cifar_like())
    stream = load_stream("split-cifar100")
    assert [task.labels for task in stream] == [tuple(range(10 * t, 10 * t + 10)) for t in range(10)]


def test_train_and_valid_never_share_an_image_and_the_seed_chooses(fake_sets: Callable[..., object]) -> None:
    fake_sets(cifar100=cifar_like(40))
    one, two = (load_stream("split-cifar100", seed=seed)[0] for seed in (0, 1))
    rows = {tuple(x.flatten()[:40].tolist()) for x in one.train.x}
    assert len(rows) == len(one.train)
    assert not any(tuple(x.flatten()[:40].tolist()) in rows for x in one.valid.x)
    assert not torch.equal(one.valid.x, two.valid.x)


def test_the_superclass_orders_are_permutations_of_the_twenty() -> None:
    assert len(SUPERCLASS_ORDERS) == len(set(SUPERCLASS_ORDERS)) == 5
    assert all(sorted(order) == list(range(20)) for order in SUPERCLASS_ORDERS)


@pytest.mark.parametrize("order", range(5))
def test_a_superclass_task_has_its_five_classes_in_fine_order(order: int, fake_sets: Callable[..., object]) -> None:
    fake_sets(cifar100=cifar_like(4))
    for task, group in zip(load_stream("cifar100-superclass", order=order), SUPERCLASS_ORDERS[order], strict=True):
        assert task.labels == tuple(sorted(fine for fine in range(100) if fine * 7 % 256 % 20 == group))


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_the_order_of_superclasses_may_follow_the_seed(seed: int, fake_sets: Callable[..., object]) -> None:
    fake_sets(cifar100=cifar_like(4))
    followed = load_stream("cifar100-superclass", seed=seed, order="seed")
    chosen = load_stream("cifar100-superclass", seed=seed, order=seed % 5)
    assert [task.labels for task in followed] == [task.labels for task in chosen]
    assert torch.equal(followed[3].valid.x, chosen[3].valid.x)
    assert followed.options["order"] == "seed"


def test_superclass_layouts_hold_the_same_bytes_over_255_and_the_published_one_scrambles_them(
    fake_sets: Callable[..., object],
) -> None:
    arrays = cifar_like(4)
    fake_sets(cifar100=arrays)
    right = load_stream("cifar100-superclass", layout="planar", valid=0)[0].test.x
    wrong = load_stream("cifar100-superclass", layout="as-published", valid=0)[0].test.x
    rows = np.isin(arrays["test_labels"], load_stream("cifar100-superclass")[0].labels)
    images = arrays["test_images"][rows]
    assert torch.allclose(right, torch.from_numpy(images.transpose(0, 3, 1, 2) / 255).float(), atol=1e-6)
    planes = images.transpose(0, 3, 1, 2).reshape(-1, 3072)  # a row of the CIFAR file
    misread = planes.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2) / 255
    assert torch.allclose(wrong, torch.from_numpy(misread).float(), atol=1e-6)
    assert not torch.allclose(right, wrong)


def test_real_superclasses_have_five_classes_each_and_known_members(real: Callable[..., None]) -> None:
    real("cifar100")
    tasks = {task.name: task.labels for task in load_stream("cifar100-superclass")}
    assert tasks["aquatic mammals"] == (4, 30, 55, 72, 95)  # beaver, dolphin, otter, seal, whale
    assert tasks["people"] == (2, 11, 35, 46, 98)  # baby, boy, girl, man, woman
    assert tasks["vehicles 2"] == (41, 69, 81, 85, 89)  # lawn-mower, rocket, streetcar, tank, tractor


def test_tiny_imagenet_uses_its_first_hundred_classes_though_there_be_more(fake_sets: Callable[..., object]) -> None:
    labels = np.repeat(np.arange(200, dtype=np.uint8), 2)
    images = np.zeros((400, 64, 64, 3), np.uint8)
    both = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    fake_sets(tiny_imagenet=both)
    assert {c for task in load_stream("split-tinyimagenet", seed=1) for c in task.labels} == set(range(100))
    assert len(load_stream("split-tinyimagenet", classes=200, tasks=40)) == 40


# --- five datasets, incremental -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fourth", "names"), [("fashion-mnist", list(FIVE)), ("as-published", ["cifar10", "mnist", "svhn", "notmnist"])]
)
def test_five_datasets_name_all_that_are_missing(fourth: str, names: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load_stream("five-datasets", fourth=fourth)
    assert re.findall(r"`remnant data fetch (\w+)`", str(caught.value)) == names


def test_as_published_the_fourth_set_is_mnist_again(fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like(40))  # no Fashion-MNIST is looked for
    stream = load_stream("five-datasets", fourth="as-published")
    assert [task.name for task in stream] == ["CIFAR-10", "MNIST", "SVHN", "MNIST again", "notMNIST"]
    second, fourth = (stream[number].test for number in (1, 3))
    assert torch.equal(second.y, fourth.y)
    assert torch.allclose(second.x * 0.2752 + 0.1, fourth.x * 0.3318 + 0.2190, atol=1e-5)  # Fashion-MNIST's statistics
    with pytest.raises(UserError, match="fourth takes 'fashion-mnist' or 'as-published'"):
        load_stream("five-datasets", fourth="fashion")


def test_grey_images_are_padded_then_normalised_and_repeated(fake_sets: Callable[..., object]) -> None:
    arrays = digits_like(40)
    fake_sets(mnist=arrays)
    x = load_stream("five-datasets")[1].test.x
    assert x.shape == (10, 3, 32, 32)
    assert torch.equal(x[:, 0], x[:, 1])
    assert torch.equal(x[:, 0], x[:, 2])
    assert torch.allclose(x[:, :, :2], torch.tensor(-0.1 / 0.2752))  # black, as the network sees it
    inner = torch.from_numpy((arrays["test_images"] / 255 - 0.1) / 0.2752).float()
    assert torch.allclose(x[:, 0, 2:-2, 2:-2], inner, atol=1e-5)


def test_notmnist_is_enlarged_to_whole_bytes_not_padded(fake_sets: Callable[..., object]) -> None:
    arrays = digits_like(40)
    arrays["test_images"][:] = 255
    fake_sets(notmnist=arrays)
    task = load_stream("five-datasets")[4]
    assert torch.allclose(task.test.x, torch.tensor((1 - 0.4254) / 0.4501), atol=1e-5)  # white to the very edge
    bytes_again = (task.train.x * 0.4501 + 0.4254) * 255
    assert torch.allclose(bytes_again, bytes_again.round(), atol=1e-2)


@pytest.mark.parametrize("order", ["natural", "shuffled"])
def test_incremental_tasks_have_one_class_each_and_labels_of_the_one_head(order: str) -> None:
    pytest.importorskip("sklearn")
    stream = load_stream("digits-incremental", seed=1, class_order=order)
    assert (stream.head, stream.head_sizes, stream.classes) == ("single", (10,), 10)
    digits = [task.labels[0] for task in stream]
    assert sorted(digits) == list(range(10))
    assert (digits == list(range(10))) == (order == "natural")
    for task, digit in zip(stream, digits, strict=True):
        assert task.classes == 1
        for split in (task.train, task.valid, task.test):
            assert set(split.y.tolist()) == {digit}


# --- laziness and memory ------------------------------------------------------------------------------------------


def test_nothing_is_read_until_a_task_is_used(fake_sets: Callable[..., object]) -> None:
    class Watched(dict[str, np.ndarray]):
        read: ClassVar[set[str]] = set()

        def __getitem__(self, key: str) -> np.ndarray:
            self.read.add(key)
            return super().__getitem__(key)

    fake_sets(mnist=Watched(digits_like(30)))
    Watched.read.clear()
    task = load_stream("pmnist")[0]
    assert not any("images" in key for key in Watched.read)
    assert task.train.x.shape == (27, 1, 28, 28)
    assert "train_images" in Watched.read


def test_a_tensor_in_use_is_found_again_and_one_out_of_use_makes_room(
    fake_sets: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sets(mnist=digits_like(50))
    stream = load_stream("pmnist")
    monkeypatch.setattr(Split, "budget", 2 * 45 * 784 * 4)
    held = stream[0].train.x
    for task in stream:
        assert task.train.x is task.train.x  # no remaking in a loop over examples
    assert stream[0].train.x is held
    kept = [task for task in stream if task.train in Split._recent]
    assert len(kept) <= 2


def test_forgotten_tensors_come_back_the_same(
    fake_sets: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sets(mnist=digits_like(50))
    stream = load_stream("pmnist")
    first = stream[0].train.x.clone()
    monkeypatch.setattr(Split, "budget", 0)
    for task in stream:
        assert task.test.x.shape == (10, 1, 28, 28)
    assert stream[0].train not in Split._recent
    assert torch.equal(stream[0].train.x, first)


def test_an_empty_valid_split_has_the_shape_of_the_others(fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like(), cifar100=cifar_like())
    for name, shape in (("pmnist", (1, 28, 28)), ("split-cifar100", (3, 32, 32)), ("rotated-mnist", (1, 28, 28))):
        valid = load_stream(name, valid=0)[0].valid
        assert (len(valid), valid.x.shape, valid.y.shape) == (0, (0, *shape), (0,))


def test_a_task_moved_is_held_whole_where_it_was_moved(fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like())
    task = load_stream("pmnist")[0]
    there = task.to("cpu")
    assert there.train.x is there.train.x
    assert torch.equal(there.test.x, task.test.x)
    assert there.name == task.name
    away = task.to("meta")  # a device that is not the CPU, on any machine
    assert {away.train.x.device.type, away.test.y.device.type} == {"meta"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["pmnist", "rotated-mnist", "split-cifar100", "five-datasets"])
def test_a_task_made_on_the_gpu_has_the_bits_of_the_one_made_here(name: str, fake_sets: Callable[..., object]) -> None:
    fake_sets(mnist=digits_like(600), cifar100=cifar_like(4), cifar10=cifar_like(1))
    task = load_stream(name)[0]
    there = task.to("cuda")
    assert there.train.x.is_cuda
    assert there.train.x[[1, 0]].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.train.x.cpu(), task.train.x)
    assert torch.equal(there.test.y.cpu(), task.test.y)


def test_ten_permutations_of_mnist_are_not_ten_copies() -> None:
    """A process that uses every tensor of every task stays under 1 GiB, torch included."""
    if not Path("/proc/self/status").exists():
        pytest.skip("a process's peak memory is read from /proc, which this system has not")
    if not (REAL_ROOT / "mnist.npz").exists():
        pytest.skip("the prepared set 'mnist' is not on this machine (remnant data fetch mnist)")
    script = (
        "from pathlib import Path\n"
        "from remnant.data import load_stream\n"
        "for task in load_stream('pmnist'):\n"
        "    task.train.x, task.valid.x, task.test.x\n"
        "lines = Path('/proc/self/status').read_text().splitlines()\n"
        "print(next(line.split()[1] for line in lines if line.startswith('VmHWM')))\n"
    )
    env = os.environ | {"REMNANT_DATA": str(REAL_ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**20  # kB
