"""Raw data, and its division into splits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from stages.contracts.errors import DataError
from stages.data.trees import LeafKind, Tree, count_rows, flatten, list_leaves, take

SPLIT_NAMES = ("train", "valid", "test")
CHUNK_ROWS = 1 << 18
"""The number of targets counted or sorted at a time."""


@dataclass(frozen=True)
class Arrays:
    """Inputs and their targets, which have the same length; a data source returns them.

    Each is an array, or a tuple or dict of arrays, nested to any depth.
    """

    inputs: Tree
    """(N, …), of any numeric type."""
    targets: Tree = None
    """(N,) integers for classes, (N, T) for a class at each element, (N, H, W) for masks of images, (N,) or
    (N, …) floats for regression, `Ragged` for boxes and their classes; None without targets."""
    names: tuple[str, str] | None = None
    """Names of the two arrays in error messages, for example "data.npz: inputs"."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `DatasetInfo`, for example ``class_names``."""
    moments: np.ndarray | None = None
    """Sums, sums of squares, minima and maxima of the values of each sample by channel, (4, N, C), int64.

    A source that reads all values has them, so that the normalization needs no pass of its own.
    """
    groups: np.ndarray | None = None
    """(N,) labels of any type, for example of persons; samples with the same label stay in one split."""
    splits: np.ndarray | None = None
    """(N,) the name of each sample's split: train, valid or test. Those that do not occur are drawn."""
    kinds: Mapping[str, LeafKind] = field(default_factory=dict)
    """The kind of each leaf by its name, such as ``{"inputs.words": "tokens"}``; the kinds of the others
    follow from their shapes and types."""

    def __len__(self) -> int:
        return count_rows(self.inputs)


NUMBERED = ("class_names", "feature_names", "categories")
"""The facts whose entries are numbered by their order."""


def check_numbering(facts: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    """Raise `DataError` if *facts*, those of *where*, do not begin as the *expected* ones of the training.

    Tokens have the numbers of their tokenizer, which must be equal.
    """
    tokenizers = [part.get("tokenizer") for part in (expected, facts)]
    if all(tokenizers) and tokenizers[0] != tokenizers[1]:
        raise DataError(
            f"{where}: the tokenizer must be that of the training data; found another vocabulary. Read all "
            "splits from one source, or name the file of a tokenizer"
        )
    for title in NUMBERED:
        trained, named = _by_column(expected.get(title)), _by_column(facts.get(title))
        for names, others in ((names, trained.get(column)) for column, names in named.items()):
            if names and others and tuple(names) != tuple(others)[: len(names)]:
                listed, found = (", ".join(map(str, entries)) for entries in (others, names))
                raise DataError(
                    f"{where}: {title} must be {listed}, as in the training data; found {found}. Number them "
                    "in that order, for example by reading all splits from one source"
                )


def _by_column(names: Any) -> Mapping[str, Any]:
    return names if isinstance(names, Mapping) else {"": names}


@dataclass(frozen=True)
class Splits:
    """The splits of a data source that has more than one; a missing one is drawn from the train split.

    Raises `DataError` if a split numbers classes, features or categories otherwise than the train split.
    """

    train: Arrays
    valid: Arrays | None = None
    test: Arrays | None = None

    def __post_init__(self) -> None:
        for name, arrays in self.by_name().items():
            check_numbering(arrays.facts, self.train.facts, f"the {name} split")

    def by_name(self) -> dict[str, Arrays]:
        """Return the splits that there are by name: train, valid, test."""
        return {name: arrays for name, arrays in vars(self).items() if arrays is not None}


class Fold(float):
    """The share of the samples in one of several disjoint parts that together are all samples."""

    index: int
    """The number of the part, counted from 1."""
    count: int
    """The number of parts."""

    def __new__(cls, index: int, count: int) -> Self:
        """Create the share ``1 / count``. Raises `DataError` if there is no such fold."""
        if not (count >= 2 and 1 <= index <= count):
            raise DataError(f"Fold({index}, {count}): pass a number of folds from 2, and a fold up to it")
        fold = super().__new__(cls, 1 / count)
        fold.index, fold.count = index, count
        return fold


def has_valid_split(loaded: Arrays | Splits) -> bool:
    """Return whether *loaded* has a valid split of its own, which is not drawn."""
    arrays = loaded.train if isinstance(loaded, Splits) else loaded
    is_named = arrays.splits is not None and bool((arrays.splits == "valid").any())
    return is_named or (isinstance(loaded, Splits) and loaded.valid is not None)


def split(
    arrays: Arrays, valid_fraction: float, seed: int, *, test_fraction: float = 0.0, stratify: bool = True
) -> Splits:
    """Divide *arrays* at random by *seed*, with the same proportion of every class in each part.

    Both fractions are shares of all samples; 0 leaves the split out. Regression targets are divided without
    strata, as all are with *stratify* False, and samples of a group stay together. A split in `Arrays.splits`
    is not drawn. A *valid_fraction* that is a `Fold` is that part of the samples that are not in the test
    split. Raises `DataError` if a part would be empty or, without groups, would miss a class, and if inputs
    and targets have different numbers of samples.
    """
    for name, leaf in (flatten(arrays.inputs, "inputs") | flatten(arrays.targets, "targets")).items():
        if count_rows(leaf) != len(arrays):
            raise DataError(
                f"inputs and {name} must have the same number of samples; found {len(arrays)} and "
                f"{count_rows(leaf)}. Remove the samples without a partner"
            )
    fractions = {"test": test_fraction, "valid": valid_fraction}
    parts = divide_samples(
        arrays, find_strata(arrays.targets, len(arrays)), fractions, seed, stratify=stratify
    )
    return Splits(**{name: _select(arrays, rows) for name, rows in parts.items()})


def find_strata(targets: Tree, count: int) -> np.ndarray:
    """Return the targets whose proportions each split has, (N,): the first leaf of classes, if there is any.

    *count* is N.
    """
    arrays = [leaf for leaf in list_leaves(targets) if isinstance(leaf, np.ndarray)]
    classes = [array for array in arrays if array.ndim == 1 and array.dtype.kind in "bui"]
    return next(iter(classes or arrays), np.zeros(count, np.float32))


def _select(arrays: Arrays, rows: np.ndarray) -> Arrays:
    return Arrays(take(arrays.inputs, rows), take(arrays.targets, rows), arrays.names, kinds=arrays.kinds)


def divide_samples(
    arrays: Arrays, targets: np.ndarray, fractions: Mapping[str, float], seed: int, *, stratify: bool
) -> dict[str, np.ndarray]:
    """Return the indices of the samples of each split: those in `Arrays.splits`, and those in *fractions*.

    A split that `Arrays.splits` lacks is drawn from train, by group or stratified by *targets*. Raises
    `DataError` as `split` does, and for the name of another split.
    """
    named = _find_named(arrays.splits, len(targets))
    train = named.get("train")
    chosen = targets if train is None else targets[train]
    if not stratify:
        chosen = np.zeros(len(chosen), np.float32)
    wanted = {name: fraction for name, fraction in fractions.items() if fraction and name not in named}
    if arrays.groups is not None and wanted:
        groups = np.asarray(arrays.groups)
        check_length(groups, len(targets), "groups")
        drawn = divide_groups(groups if train is None else groups[train], chosen, wanted, seed)
    elif wanted or train is None:
        drawn = divide(chosen, wanted, seed)
    else:
        return named
    return named | {name: rows if train is None else train[rows] for name, rows in drawn.items()}


def _find_named(names: np.ndarray | None, count: int) -> dict[str, np.ndarray]:
    """Return the indices of the samples of each split in *names*."""
    if names is None:
        return {}
    check_length(names, count, "splits")
    rows_by_name = {name: np.flatnonzero(names == name) for name in SPLIT_NAMES}
    parts = {name: rows.astype(_index_type(count)) for name, rows in rows_by_name.items() if len(rows)}
    if sum(map(len, parts.values())) < count or "train" not in parts:
        others = sorted({str(name) for name in names} - set(SPLIT_NAMES))
        problem = f"found {', '.join(map(repr, others[:3]))}" if others else "no sample is in train"
        raise DataError(
            f"the split of a sample must be train, valid or test, and some must be train; {problem}. "
            "Correct the values"
        )
    return parts


def divide(targets: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Return the indices of the samples of each split: one for each of *fractions*, and train, the rest.

    The splits are drawn in the order of *fractions*, each from the rest, and stratified by *targets* if they
    are classes. The first has the indices and their order of scikit-learn's ``train_test_split``. Raises
    `DataError` as `split` does.
    """
    sizes = {name: round(len(targets) * fraction) for name, fraction in fractions.items()}
    _check_sizes(len(targets), fractions, sizes)
    generator = np.random.RandomState(seed)
    parts: dict[str, np.ndarray] = {}
    for name, size in sizes.items():
        rest = parts.get("train")
        chosen, fraction = targets if rest is None else targets[rest], fractions[name]
        if isinstance(fraction, Fold):
            remaining, drawn = _draw_fold(chosen, fraction, generator)
        else:
            remaining, drawn = _draw(chosen, name, size, generator)
        parts |= (
            {"train": remaining, name: drawn}
            if rest is None
            else {"train": rest[remaining], name: rest[drawn]}
        )
    return parts or {"train": np.arange(len(targets), dtype=_index_type(len(targets)))}


def _check_sizes(count: int, fractions: Mapping[str, float], sizes: Mapping[str, int]) -> None:
    rest = count - sum(sizes.values())
    if rest > 0 and all(sizes.values()):
        return
    names = ["folds" if isinstance(share, Fold) else f"{name}_fraction" for name, share in fractions.items()]
    requested = " and ".join(
        f"{name} {fraction.count if isinstance(fraction, Fold) else fraction}"
        for name, fraction in zip(names, fractions.values(), strict=True)
    )
    numbers = " and ".join(f"{size} for {name}" for name, size in sizes.items())
    raise DataError(
        f"an empty split: {requested} of {count} samples {'leaves' if len(names) == 1 else 'leave'} "
        f"{rest} for train and {numbers}. Change load_data.{' or load_data.'.join(names)}"
    )


def _draw_fold(
    targets: np.ndarray, fold: Fold, generator: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the samples in the other folds, and of those in *fold*.

    The folds are drawn one after another from the rest, so that they are the same for each index.
    """
    rest, folds = np.arange(len(targets), dtype=_index_type(len(targets))), []
    for count in range(fold.count, 1, -1):
        remaining, drawn = _draw(targets[rest], "fold", len(rest) // count, generator)
        folds.append(rest[drawn])
        rest = rest[remaining]
    folds.append(rest)
    chosen = folds.pop(fold.index - 1)
    return np.concatenate(folds), chosen


def _draw(
    targets: np.ndarray, name: str, size: int, generator: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the samples that remain, and of *size* samples drawn for the split *name*."""
    if targets.dtype.kind in "bui" and targets.ndim == 1:
        return _draw_classes(targets, name, size, generator)
    order = generator.permutation(len(targets)).astype(_index_type(len(targets)))
    return order[size:], order[:size]


def _draw_classes(
    targets: np.ndarray, name: str, size: int, generator: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Draw *size* samples, as scikit-learn's ``StratifiedShuffleSplit`` does."""
    classes, counts = _count_classes(targets)
    train = len(targets) - size
    if counts.min() < 2 or min(train, size) < len(classes):
        raise DataError(
            f"{len(targets)} samples cannot be divided so that every class is in both splits: "
            f"class {classes[counts.argmin()]} has {counts.min()}, and {len(classes)} classes share {train} "
            f"samples in train and {size} in {name}. Add samples, or change load_data."
            f"{'folds' if name == 'fold' else f'{name}_fraction'}"
        )
    rows = _sort_by_class(targets, classes, counts)
    chosen = np.empty(size, rows.dtype)
    from_train = _shares(counts, train, generator)
    from_drawn = _shares(counts - from_train, size, generator)
    remaining = taken = 0
    for end, count, first, second in zip(counts.cumsum(), counts, from_train, from_drawn, strict=True):
        drawn = rows[end - count : end][generator.permutation(count)]
        # in place: remaining never exceeds the start of the class
        rows[remaining : remaining + first] = drawn[:first]
        chosen[taken : taken + second] = drawn[first : first + second]
        remaining, taken = remaining + first, taken + second
    generator.shuffle(rows[:train])
    generator.shuffle(chosen)
    return rows[:train], chosen


def _count_classes(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``np.unique(targets, return_counts=True)`` without a sorted copy of all targets."""
    classes, counts = targets[:0], np.zeros(0, np.int64)
    for start in range(0, len(targets), CHUNK_ROWS):
        block_classes, numbers = np.unique(targets[start : start + CHUNK_ROWS], return_counts=True)
        classes, places = np.unique(np.concatenate((classes, block_classes)), return_inverse=True)
        total = np.zeros(len(classes), np.int64)
        np.add.at(total, places, np.concatenate((counts, numbers)))
        counts = total
    return classes, counts


def _sort_by_class(targets: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``targets.argsort(kind="stable")`` in the smallest index type, sorted chunk by chunk."""
    rows = np.empty(len(targets), _index_type(len(targets)))
    ends = counts.cumsum() - counts  # of the placed rows of each class
    for start in range(0, len(targets), CHUNK_ROWS):
        chunk = np.searchsorted(classes, targets[start : start + CHUNK_ROWS])
        order = chunk.argsort(kind="stable")
        added = np.bincount(chunk, minlength=len(classes))
        offsets = np.repeat(ends - (added.cumsum() - added), added)
        rows[offsets + np.arange(len(chunk))] = order + start
        ends += added
    return rows


def _shares(counts: np.ndarray, draws: int, generator: np.random.RandomState) -> np.ndarray:
    """Return the number of *draws* from each class, in proportion to *counts*; ties are broken at random.

    This is scikit-learn's ``_approximate_mode``: the mode of the multivariate hypergeometric distribution.
    """
    exact = counts / counts.sum() * draws
    shares: np.ndarray = np.floor(exact)
    missing = int(draws - shares.sum())
    remainders = exact - shares
    for remainder in np.unique(remainders)[::-1]:
        if missing <= 0:
            break
        (tied,) = np.nonzero(remainders == remainder)
        chosen = generator.choice(tied, size=min(len(tied), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    return shares.astype(np.int64)


def _index_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the smallest integer type that can index *count* samples."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def divide_groups(
    groups: np.ndarray, targets: np.ndarray, fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Return the indices of the samples of each split: one for each of *fractions*, and train, the rest.

    The groups are visited from the largest to the smallest, equal ones in an order drawn by *seed*. Each goes
    to the split that lacks most of its samples, class by class if *targets* are classes.

    Raises `DataError` if a split would be empty.
    """
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    members = np.split(codes.argsort(kind="stable"), sizes.cumsum()[:-1])
    generator = np.random.RandomState(seed)
    visited = generator.permutation(len(members))
    visited = visited[(-sizes[visited]).argsort(kind="stable")]
    fold = fractions.get("valid")
    if isinstance(fold, Fold):
        shares = {name: fraction for name, fraction in fractions.items() if name != "valid"}
        share = (1.0 - sum(shares.values())) / fold.count
        shares |= {f"fold {number}": share for number in range(1, fold.count + 1)}
    else:
        shares = {"train": 1.0 - sum(fractions.values()), **fractions}
    splits = np.empty(len(members), np.int64)
    splits[visited] = _choose_splits([members[group] for group in visited], targets, list(shares.values()))
    parts = {}
    for place, name in enumerate(shares):
        rows = np.flatnonzero(splits[codes] == place)
        if not len(rows):
            raise DataError(
                f"{len(members)} groups cannot be divided by load_data.test_fraction and valid_fraction, or "
                f"folds: the {name} split would be empty. Add groups, or change these params"
            )
        parts[name] = generator.permutation(rows)
    if isinstance(fold, Fold):
        parts["valid"] = parts.pop(f"fold {fold.index}")
        others = [parts.pop(name) for name in shares if name.startswith("fold ") and name in parts]
        parts["train"] = np.concatenate(others)
    return parts


def check_length(labels: np.ndarray, count: int, name: str) -> None:
    """Raise `DataError` unless *labels*, the field *name* of `Arrays`, are those of *count* samples."""
    if labels.shape != (count,):
        raise DataError(
            f"{name} must have one label per sample, shape ({count},); found shape {labels.shape}. "
            "Return a label for each sample"
        )


def _choose_splits(members: list[np.ndarray], targets: np.ndarray, shares: list[float]) -> list[int]:
    """Return the split of each group, which reduces the squared lack of its classes most."""
    is_classes = targets.dtype.kind in "bui" and targets.ndim == 1
    classes = np.unique(targets, return_inverse=True)[1] if is_classes else np.zeros(len(targets), np.int64)
    totals = np.bincount(classes)
    missing = np.outer(shares, totals)
    chosen = []
    for rows in members:
        present, counts = np.unique(classes[rows], return_counts=True)
        gains = ((2 * missing[:, present] - counts) * counts / totals[present] ** 2).sum(axis=1)
        chosen.append(int(gains.argmax()))
        missing[chosen[-1], present] -= counts
    return chosen
