"""The data source ``dataset``: the samples of datasets of PyTorch."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import DataError, PluginError
from stages.data.splits import SPLIT_NAMES, Arrays, Splits
from stages.devices.rng import preserve_random_state, seed_sample

SEED = 0
"""The seed of the generators while samples are read, for datasets that draw random numbers."""


def dataset(factory: Use) -> Arrays | Splits:
    """Return the samples of the datasets that *factory*, a function or a class with its arguments, returns.

    It returns a map-style or an iterable dataset, a tuple of two or three (train, valid, test), or a mapping
    of them by name. A sample is an input and a target: tensors, arrays or numbers, of one shape and type in
    all samples. They are read once, with the generators of torch, Python and NumPy seeded. Raises
    `PluginError` if *factory* cannot be called, and `DataError` if a sample has another form.
    """
    name = factory.kind
    maker = plugins.find("dataset", name, {})
    with preserve_random_state():
        seed_sample(SEED, "dataset")
        created = plugins.build("dataset", name, maker, arguments_of(factory))
        if not isinstance(created, tuple | Mapping):
            return _read(created, name)
        splits = dict(created if isinstance(created, Mapping) else zip(SPLIT_NAMES, created, strict=False))
        if "train" not in splits or not set(splits) <= set(SPLIT_NAMES) or len(splits) != len(created):
            raise PluginError(
                f"dataset {name!r} must return a dataset, a tuple of at most three, or a mapping with names "
                f"of {', '.join(SPLIT_NAMES)}, of which train is required; found {len(created)}: "
                f"{', '.join(map(str, splits))}"
            )
        return Splits(**{split: _read(samples, f"{name}: {split}") for split, samples in splits.items()})


def _read(source: Any, name: str) -> Arrays:
    """Return all samples of a dataset, whose *name* is for errors."""
    samples = _iterate(source, name)
    first = next(samples, None)
    if first is None:
        raise DataError(f"{name} has no samples. Correct the arguments of the dataset")
    count = len(source) if isinstance(source, Sized) else None
    columns = [_Values(array, count) for array in first]
    for index, sample in enumerate(samples, start=1):
        for values, array, part in zip(columns, sample, ("input", "target"), strict=True):
            if (array.shape, array.dtype) != (values.shape, values.dtype):
                raise DataError(
                    f"{name}: the {part} of sample {index} has the shape {array.shape} and the type "
                    f"{array.dtype}, but that of sample 0 {values.shape} and {values.dtype}. Convert it in "
                    "the dataset"
                )
            values.append(array)
    inputs, targets = (values.array for values in columns)
    return Arrays(inputs, targets, (f"{name}: inputs", f"{name}: targets"))


class _Values:
    """An array of samples that grows."""

    def __init__(self, first: np.ndarray, count: int | None) -> None:
        self.shape, self.dtype = first.shape, first.dtype
        self._found = np.empty((count or 1, *self.shape), self.dtype)
        self._count = 0
        self.append(first)

    def append(self, array: np.ndarray) -> None:
        """Add the value of another sample."""
        if self._count == len(self._found):
            self._found = np.concatenate((self._found, np.empty_like(self._found)))
        self._found[self._count] = array
        self._count += 1

    @property
    def array(self) -> np.ndarray:
        """The values of all samples."""
        return self._found[: self._count]


def _iterate(source: Any, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the input and the target of each sample of a map-style or iterable dataset."""
    samples: Iterable[Any]
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):
        samples = (source[index] for index in range(len(source)))
    elif isinstance(source, Iterable):
        samples = source
    else:
        raise PluginError(
            f"dataset {name!r} must have __len__ and __getitem__, or __iter__; found {type(source).__name__}"
        )
    for index, sample in enumerate(samples):
        try:
            inputs, target = islice(sample, 3)
        except (TypeError, ValueError):
            raise DataError(
                f"{name}: sample {index} must be an input and a target; found {type(sample).__name__}. "
                "Return a tuple"
            ) from None
        yield (
            _to_array(inputs, f"{name}: the input of sample {index}"),
            _to_array(target, f"{name}: the target of sample {index}"),
        )


def _to_array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic | int | float):
        return np.asarray(value)
    raise DataError(
        f"{name} must be a tensor, an array or a number; found {type(value).__name__}. "
        "Convert it in the dataset"
    )
