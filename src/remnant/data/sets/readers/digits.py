"""scikit-learn's 1,797 digits of 8×8 pixels from 0 to 16. No download is needed."""

import importlib

import numpy as np

from ...errors import MissingExtraError
from .tree import Arrays


def read_digits() -> Arrays:
    """The original has no test part, so every fifth image of each digit is the test part, for all seeds."""
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
