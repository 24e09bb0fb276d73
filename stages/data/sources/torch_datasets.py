"""The data source ``dataset``: the samples of datasets of PyTorch, stored as tensors or read when needed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import DataError, PluginError
from stages.data.raw_arrays import LazyRows, LazySamples, RowFile, check_type
from stages.data.splits import SPLIT_NAMES, Arrays, Splits
from stages.data.storage import LeafInfo
from stages.data.trees import Ragged, flatten, unflatten
from stages.devices.rng import preserve_random_state, seed_sample

Forms = Mapping[str, tuple[tuple[int, ...], Any]]
"""The shape and the type of each leaf of a sample by its name."""
SEED = 0
"""The seed of the generators while samples are read, for datasets that draw random numbers."""


def dataset(factory: Use, *, lazy: bool = False) -> Arrays | Splits:
    """Return the samples of the datasets that *factory*, a function or a class with its arguments, returns.

    It returns a map-style or an iterable dataset, a tuple of two or three (train, valid, test), or a mapping
    of them by name. A sample is a pair of inputs and targets, or inputs that are a tensor or a dict: tensors,
    arrays or numbers, or tuples and dicts of these, of one shape and type in all samples. In a dict with
    ``boxes`` (n, 4), leaves of at most two axes have a row for each of its boxes.

    The samples are read once, with the generators of torch, Python and NumPy seeded. With *lazy*, those of
    map-style datasets are read when they are needed; if one is iterable, all are stored on the disk.
    Raises `PluginError` if *factory* cannot be called, and `DataError` if a sample has another form.
    """
    with preserve_random_state():
        parts = build_parts(factory)
        is_read_later = lazy and all(map(_has_items, parts.values()))
        read = partial(_read_lazily, factory) if is_read_later else partial(_read, on_disk=lazy)
        if set(parts) == {""}:
            return read(parts[""], factory.kind)
        return Splits(
            **{split: read(samples, f"{factory.kind}: {split}") for split, samples in parts.items()}
        )


def build_parts(factory: Use) -> dict[str, Any]:
    """Return the datasets of *factory* by the names of their splits; a single one has no name."""
    name = factory.kind
    seed_sample(SEED, "dataset")
    created = plugins.build("dataset", name, plugins.find("dataset", name, {}), arguments_of(factory))
    if not isinstance(created, tuple | Mapping):
        return {"": created}
    splits = dict(created if isinstance(created, Mapping) else zip(SPLIT_NAMES, created, strict=False))
    if "train" not in splits or not set(splits) <= set(SPLIT_NAMES) or len(splits) != len(created):
        raise PluginError(
            f"dataset {name!r} must return a dataset, a tuple of at most three, or a mapping with names "
            f"of {', '.join(SPLIT_NAMES)}, of which train is required; found {len(created)}: "
            f"{', '.join(map(str, splits))}"
        )
    return splits


def _read(source: Any, name: str, *, on_disk: bool = False) -> Arrays:
    """Return all samples of a dataset, whose *name* is for errors; those *on_disk* are mapped into memory."""
    samples = _iterate(source, name)
    first = next(samples, None)
    if first is None:
        raise DataError(f"{name} has no samples. Correct the arguments of the dataset")
    forms = _find_forms(first, name)
    rows: dict[str, list[np.ndarray]] = {leaf: [] for leaf, (shape, _) in forms.items() if -1 in shape}
    values = {leaf: RowFile(*form, on_disk=on_disk) for leaf, form in forms.items() if leaf not in rows}
    for index, sample in enumerate(chain([first], samples)):
        check_form(sample, forms, f"sample {index}", name)
        for leaf, array in sample.items():
            if leaf in rows:
                rows[leaf].append(array.copy())
            else:
                values[leaf].append(array[None])
    leaves: dict[str, Any] = {leaf: column.join() for leaf, column in values.items()}
    return _build_arrays(leaves | {leaf: Ragged.of(arrays) for leaf, arrays in rows.items()}, name)


def _find_forms(sample: Mapping[str, np.ndarray], name: str) -> Forms:
    """Return the forms of the leaves of *sample*; -1 is the number of boxes, and of the rows beside them."""
    forms: dict[str, tuple[tuple[int, ...], Any]] = {}
    for leaf, array in sample.items():
        check_type(array.dtype, f"{name}: the leaf {leaf!r} of sample 0")
        has_rows = array.ndim in (1, 2) and f"{leaf.rpartition('.')[0]}.boxes" in sample
        if not array.size and not has_rows:
            raise DataError(
                f"{name}: the leaf {leaf!r} must have at least one value per sample; found shape "
                f"{array.shape} in sample 0. Check the axes of the array"
            )
        forms[leaf] = (-1, *array.shape[1:]) if has_rows else array.shape, array.dtype
    return forms


def check_form(sample: Mapping[str, np.ndarray], forms: Forms, title: str, name: str) -> None:
    """Raise `DataError` if the leaves of *sample* have not the shapes and types of *forms*.

    Leaves with a shape of -1 must have the same number of rows as those of the same dict.
    """
    if sample.keys() != forms.keys():
        raise DataError(
            f"{name}: {title} has the leaves {', '.join(sample)}, but sample 0 {', '.join(forms)}. Convert "
            "it in the dataset"
        )
    rows: dict[str, tuple[str, int]] = {}
    for leaf, array in sample.items():
        shape, _ = forms[leaf]
        if -1 in shape and array.ndim:
            shape = len(array), *shape[1:]
            beside, count = rows.setdefault(leaf.rpartition(".")[0], (leaf, len(array)))
            if len(array) != count:
                raise DataError(
                    f"{name}: {title} has {count} rows in the leaf {beside!r}, but {len(array)} in {leaf!r}. "
                    "Return a row for each box"
                )
        if (array.shape, array.dtype) != (shape, forms[leaf][1]):
            raise DataError(
                f"{name}: the leaf {leaf!r} of {title} has the shape {array.shape} and the type "
                f"{array.dtype}, but that of sample 0 {shape} and {forms[leaf][1]}. Convert it in the "
                "dataset"
            )


def _build_arrays(leaves: Mapping[str, Any], name: str) -> Arrays:
    names = (f"{name}: inputs", f"{name}: targets")
    return Arrays(unflatten(leaves, "inputs"), unflatten(leaves, "targets"), names)


def _read_lazily(factory: Use, source: Any, name: str) -> Arrays:
    """Return arrays that read the samples of a map-style dataset when they are needed."""
    if not len(source):
        raise DataError(f"{name} has no samples. Correct the arguments of the dataset")
    forms = _find_forms(next(_read_seeded(source, name, None, [0])), name)
    if ragged := [leaf for leaf, (shape, _) in forms.items() if -1 in shape]:
        raise DataError(
            f"{name}: the leaf {ragged[0]!r} has a row for each box, which cannot be read when samples are "
            "needed. Set load_data.source.lazy to false, or return an iterable dataset"
        )
    samples = LazySamples.of(partial(_read_seeded, source, name, forms), len(source), forms)
    arrays = _build_arrays({leaf: LazyRows(samples, leaf) for leaf in forms}, name)
    return replace(arrays, facts={"factory": factory})


def _read_seeded(
    source: Any, name: str, forms: Forms | None, rows: Sequence[int]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the samples at *rows*; their random numbers depend on the row alone."""
    with preserve_random_state():
        for row in rows:
            seed_sample(SEED, "dataset", row)
            sample = to_leaves(source[row], name, row)
            if forms is not None:
                check_form(sample, forms, f"sample {row}", name)
            yield sample


class LazyDataset:
    """The samples of a split at *rows* of a map-style dataset, as tensors of the stored types."""

    def __init__(self, source: Any, rows: Tensor, leaves: Mapping[str, LeafInfo]) -> None:
        self.source = source
        self.rows = rows
        self.leaves = leaves
        self.kinds = {name: leaf.kind for name, leaf in leaves.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        """Return a sample. Raises `DataError` if it has another form than the one that load-data read."""
        row = int(self.rows[index])
        arrays = to_leaves(self.source[row], type(self.source).__name__, row)
        stored = {name: array.astype(self.leaves[name].dtype) for name, array in arrays.items()}
        forms = {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in self.leaves.items()}
        check_form(stored, forms, f"sample {row}", type(self.source).__name__)
        tensors = {name: torch.from_numpy(array) for name, array in stored.items()}
        inputs, targets = unflatten(tensors, "inputs"), unflatten(tensors, "targets")
        return inputs if targets is None else (inputs, targets)


def _has_items(source: Any) -> bool:
    """Return whether *source* is a map-style dataset."""
    return isinstance(source, Sized) and hasattr(source, "__getitem__")


def _iterate(source: Any, name: str) -> Iterator[dict[str, np.ndarray]]:
    """Yield the leaves of each sample of a map-style or iterable dataset."""
    samples: Iterable[Any]
    if _has_items(source):
        samples = (source[index] for index in range(len(source)))
    elif isinstance(source, Iterable):
        samples = source
    else:
        raise PluginError(
            f"dataset {name!r} must have __len__ and __getitem__, or __iter__; found {type(source).__name__}"
        )
    for index, sample in enumerate(samples):
        yield to_leaves(sample, name, index)


def to_leaves(sample: Any, name: str, index: int) -> dict[str, np.ndarray]:
    """Return the leaves of a sample: a pair of inputs and targets, or inputs; *name* is for errors."""
    if isinstance(sample, Mapping | Tensor):
        inputs, targets = sample, None
    else:
        try:
            inputs, targets = islice(sample, 3)
        except (TypeError, ValueError):
            raise DataError(
                f"{name}: sample {index} must be an input and a target; found {type(sample).__name__}. "
                "Return a tuple"
            ) from None
    leaves = flatten(inputs, "inputs") | flatten(targets, "targets")
    return {
        leaf: _to_array(value, f"{name}: the leaf {leaf!r} of sample {index}")
        for leaf, value in leaves.items()
    }


def _to_array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic | int | float):
        return np.asarray(value)
    raise DataError(
        f"{name} must be a tensor, an array or a number; found {type(value).__name__}. "
        "Convert it in the dataset"
    )
