"""The data sources we ship: functions that return `Arrays`, or `Splits` where the data has its own."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import DataError, PluginError
from stages.data.config import BUILT_IN, Digits, Idx, Npz
from stages.data.splits import Arrays, Splits

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def load_source(config: Digits | Idx | Npz | Use) -> Arrays | Splits:
    """What the source that *config* names holds. Raises `DataError` or `PluginError`."""
    source = plugins.find("source", config.kind, BUILT_IN)
    loaded = plugins.build("source", config.kind, source, arguments_of(config))
    if not isinstance(loaded, Arrays | Splits):
        raise PluginError(
            f"source {config.kind!r} returned a {type(loaded).__name__}; it must return "
            "stages.data.Arrays(inputs, targets), or Splits(train, valid) of two such"
        )
    return loaded


def digits() -> Arrays:
    """scikit-learn's 1,797 digits: inputs (1797, 1, 8, 8) of 0…16 as uint8, ten classes."""
    images, classes = load_digits(return_X_y=True)
    return Arrays(images.astype(np.uint8).reshape(-1, 1, 8, 8), classes.astype(np.int64))


def idx(path: str) -> Splits:
    """MNIST as published: images as (N, 1, height, width) uint8 from the four files in folder *path*."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"load_data.source.path: there is no folder {path!r}")
    return Splits(train=_idx_pair(folder, "train"), valid=_idx_pair(folder, "t10k"))


def npz(path: str) -> Arrays | Splits:
    """A NumPy archive, read without pickle; see `stages.data.config.Npz` for the names in it."""
    arrays = _npz_arrays(Path(path))
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        return Splits(
            train=_pair(arrays["x_train"], arrays["y_train"], f"{path}: x_train and y_train"),
            valid=_pair(arrays["x_test"], arrays["y_test"], f"{path}: x_test and y_test"),
        )
    if {"inputs", "targets"} <= arrays.keys():
        return _pair(arrays["inputs"], arrays["targets"], f"{path}: inputs and targets")
    raise DataError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; "
        "it must hold x_train, y_train, x_test, y_test, or inputs and targets"
    )


def _idx_pair(folder: Path, prefix: str) -> Arrays:
    images, labels = _idx_file(folder, f"{prefix}-images"), _idx_file(folder, f"{prefix}-labels")
    return _pair(images[:, None], labels.astype(np.int64), f"{folder}: {prefix} images and labels")


def _pair(inputs: np.ndarray, targets: np.ndarray, where: str) -> Arrays:
    if len(inputs) != len(targets):
        raise DataError(f"{where} do not match in number: {len(inputs)} and {len(targets)}")
    return Arrays(inputs, targets)


def _idx_file(folder: Path, stem: str) -> np.ndarray:
    """The array in the one file of *folder* that begins with *stem*; `DataError` if it is not whole."""
    dimensions = 3 if stem.endswith("images") else 1
    candidates = [folder / f"{stem}-idx{dimensions}-ubyte{suffix}" for suffix in (".gz", "")]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise DataError(f"{folder} has no {candidates[1].name} and no {candidates[0].name}")
    data = _content(path)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES or data[3] != dimensions:
        raise DataError(f"{path} is no IDX file of {dimensions} dimensions: it begins {data[:4]!r}")
    shape = np.frombuffer(data, ">u4", dimensions, 4).tolist()
    dtype = np.dtype(_IDX_TYPES[data[2]])
    expected = head + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise DataError(
            f"{path} is cut short or altered: {len(data)} bytes for shape {tuple(shape)}, "
            f"which takes {expected}"
        )
    return np.frombuffer(data, dtype, offset=head).reshape(shape).astype(dtype.newbyteorder("="))


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is cut short or altered: {error}") from error


def _npz_arrays(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"load_data.source.path: there is no file {str(path)!r}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:
        raise DataError(f"{path} is no readable NumPy archive: {error}") from error
