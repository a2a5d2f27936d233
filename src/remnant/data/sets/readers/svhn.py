"""SVHN's cropped digits: MATLAB files with images along the last axis and the digit 0 labelled 10."""

import importlib
import io

import numpy as np

from ...errors import DataError, MissingExtraError
from .tree import Arrays, Tree


def read_svhn(tree: Tree, wanted: str) -> Arrays:
    try:
        matlab = importlib.import_module("scipy.io")
    except ImportError as error:
        raise MissingExtraError("Reading SVHN's .mat files needs scipy: pip install 'remnant[svhn]'.") from error
    arrays = {}
    for part in ("train", "test"):
        name = f"{part}_32x32.mat"
        data = tree.need(wanted, name)
        try:
            content = matlab.loadmat(io.BytesIO(data), variable_names=["X", "y"])
            images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
        except Exception as error:  # scipy's reader can raise anything on damaged files
            raise DataError(f"{tree.where}: {name} is not a complete MATLAB file with X and y ({error}).") from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
            raise DataError(
                f"{tree.where}: X in {name} is {images.dtype} {images.shape}, not bytes of 32 × 32 × 3 × N."
            )
        arrays[f"{part}_images"] = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
        arrays[f"{part}_labels"] = (labels % 10).astype(np.uint8)
    return arrays
