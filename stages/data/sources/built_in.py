"""The built-in data sources: functions that return `Arrays`, or `Splits` if the data has several."""

from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from stages.contracts import plugins
from stages.contracts.config import arguments_of
from stages.contracts.errors import DataError, PluginError
from stages.data.config import BUILT_IN, Source
from stages.data.sources.array_files import map_npy, read_idx, read_npz
from stages.data.splits import Arrays, Splits
from stages.data.trees import list_names, pick


def load_source(config: Source) -> Arrays | Splits:
    """Return the data of the source that *config* names. Raises `DataError` or `PluginError`."""
    source = plugins.find("source", config.kind, BUILT_IN)
    loaded = plugins.build("source", config.kind, source, arguments_of(config))
    if not isinstance(loaded, Arrays | Splits):
        raise PluginError(
            f"source {config.kind!r} must return stages.data.Arrays(inputs, targets), or Splits(train, "
            f"valid, test) of such; found {type(loaded).__name__}"
        )
    return loaded


def digits() -> Arrays:
    """Return scikit-learn's 1,797 digits: inputs (1797, 1, 8, 8), uint8 from 0 to 16, in ten classes."""
    # an import of scikit-learn loads SciPy and pandas, and takes longer than that of torch
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(Path(str(path)), np.uint8, delimiter=",")
    images = rows[:, :-1].copy().reshape(-1, 1, 8, 8)
    return Arrays(images, rows[:, -1].astype(np.int64))


def idx(path: str) -> Splits:
    """Return MNIST from the four published files in *path*: images (N, 1, height, width), uint8."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"load_data.source.path: there is no folder {path!r}. Correct the path")
    return Splits(train=_idx_pair(folder, "train"), valid=_idx_pair(folder, "t10k"))


def npz(
    path: str, inputs: str | Sequence[str] | None = None, targets: str | Sequence[str] | None = None
) -> Arrays | Splits:
    """Return the arrays of a NumPy archive, read without pickle; `Npz` lists their names.

    *inputs* and *targets* are the names of others; of several names, the samples are dicts.
    """
    if inputs is not None:
        names = [name for part in (inputs, targets or ()) for name in list_names(part)]
        arrays = read_npz(Path(path), tuple(names))
        chosen = None if targets is None else pick(arrays, targets)
        return Arrays(pick(arrays, inputs), chosen, (f"{path}: inputs", f"{path}: targets"))
    arrays = read_npz(Path(path), ("x_train", "y_train", "x_test", "y_test"), ("inputs", "targets"))
    if "inputs" in arrays:
        return _npz_pair(arrays, "inputs", "targets", path)
    return Splits(
        train=_npz_pair(arrays, "x_train", "y_train", path), valid=_npz_pair(arrays, "x_test", "y_test", path)
    )


def npy(inputs: str, targets: str) -> Arrays:
    """Return the arrays in two .npy files, mapped into memory and read without pickle."""
    return Arrays(
        map_npy(Path(inputs), "load_data.source.inputs"),
        map_npy(Path(targets), "load_data.source.targets"),
        (inputs, targets),
    )


def _npz_pair(arrays: dict[str, np.ndarray], inputs: str, targets: str, path: str) -> Arrays:
    return Arrays(arrays[inputs], arrays[targets], (f"{path}: {inputs}", f"{path}: {targets}"))


def _idx_pair(folder: Path, prefix: str) -> Arrays:
    images, labels = _idx_path(folder, f"{prefix}-images-idx3"), _idx_path(folder, f"{prefix}-labels-idx1")
    targets = read_idx(labels, dimensions=1)
    if targets.dtype.kind != "f":
        targets = targets.astype(np.int64)
    return Arrays(
        read_idx(images, dimensions=3)[:, None], targets, (f"{images}: images", f"{labels}: labels")
    )


def _idx_path(folder: Path, stem: str) -> Path:
    candidates = [folder / f"{stem}-ubyte{suffix}" for suffix in (".gz", "")]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise DataError(
            f"{folder} contains neither {candidates[1].name} nor {candidates[0].name}. Add one of them"
        )
    return path
