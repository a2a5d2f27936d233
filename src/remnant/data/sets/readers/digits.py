"""scikit-learn's 1,797 digits of 8×8 pixels (0 … 16): always there, so the default everywhere."""

import importlib

import numpy as np
from numpy.typing import NDArray

from ...errors import MissingExtraError


def read_digits() -> dict[str, NDArray[np.uint8]]:
    """The set has no test part of its own: every fifth image of each digit is it, whatever the seed."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtraError(
            "'digits' comes with scikit-learn, which is not installed: pip install scikit-learn."
        ) from error
    images, labels = datasets.load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 8, 8).astype(np.uint8), labels.astype(np.uint8)
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[4::5]] = True
    return {
        "train_images": images[~test],
        "train_labels": labels[~test],
        "test_images": images[test],
        "test_labels": labels[test],
    }
