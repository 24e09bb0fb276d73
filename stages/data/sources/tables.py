"""The data source ``table``: the columns of a CSV, Parquet or Arrow file as features and a target."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stages.contracts.errors import DataError, closest
from stages.data.raw_arrays import RowFile
from stages.data.sources.labels import check_column
from stages.data.sources.table_files import CsvFormat, TableParts, is_number, is_text, load_arrow
from stages.data.splits import Arrays
from stages.data.trees import list_names, pick

BLOCK_BYTES = 1 << 21
"""The size of the features that are decoded at a time."""
MAX_CATEGORIES = 10_000
"""Limit of the categories of a column. A column with more is rather a text or a key."""

Missing = Literal["error", "drop", "mean", "constant"]
Encoding = Literal["one_hot", "codes"]
Task = Literal["classification", "regression"]


def table(
    path: str,
    target: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    encoding: Encoding = "one_hot",
    missing: Missing = "error",
    fill: float = 0.0,
    task: Task | None = None,
    valid_path: str | None = None,
    test_path: str | None = None,
    split: str | None = None,
    group: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    missing_values: Sequence[str] | None = None,
    header: bool = True,
) -> Arrays:
    """Return the columns of a table that match *features* as (N, F) float32, and the column *target*.

    Names may be patterns of a shell; without *features*, all other columns are features, except for the index
    that pandas has written. Those that match *categorical* have a feature for each category (``one_hot``), or
    one with its number in sorted order (``codes``). *missing* is the rule for missing values: an error, no
    sample for the row, the mean of the column, or *fill*; with the last two, a missing category is a category
    of its own. A target of text or integers is a class, one of floats or decimals a number; *task* overrides
    this. Of several targets, a dict has the column of each.

    A path is a file, or a folder of files with the same columns. *valid_path* and *test_path* are those of
    further splits, or *split* is a column with ``train``, ``valid`` and ``test``; *group* is a column whose
    values decide which rows stay in one split. The files are read in batches.

    In CSV files, *delimiter* is the character between two values (a comma, or a tab in ``.tsv`` files), and
    *decimal* the one before the decimals. *missing_values* are the texts of missing values, instead of those
    of Arrow, such as an empty one and ``NA``. Without a *header*, columns are ``f0``, ``f1`` and so on.

    Raises `DataError` if a column is missing or not usable, two have one name, a file is not UTF-8, or an
    integer of a feature is not a float32.
    """
    if split and (valid_path or test_path):
        raise DataError("load_data.source.split: set either split, or valid_path and test_path")
    form = CsvFormat(delimiter, decimal, missing_values, header)
    file = TableParts({"train": path, "valid": valid_path, "test": test_path}, form)
    extra = {name: column for name, column in (("split", split), ("group", group)) if column is not None}
    targets = list_names(target)
    for name, column in (*(("target", name) for name in targets), *extra.items()):
        check_column(file.schema.names, name, column, path)
    hidden = file.index_names - {*(features or ())}
    columns = _select(file.schema.names, {*targets, *extra.values(), *hidden}, features, path)
    chosen = [_Feature(name, _is_match(name, categorical)) for name in columns]
    _set_types(file, chosen, targets, task)
    scan = _Scan(file, chosen, {name: [] for name in targets}, extra, missing, task, file.path)
    is_kept = scan.run()
    encoder = _Encoder(chosen, encoding, fill, uses_means=missing == "mean")
    rows = _store(file, encoder, is_kept)
    facts: dict[str, Any] = {"feature_names": encoder.feature_names}
    if categories := {feature.name: feature.category_names for feature in chosen if feature.is_categorical}:
        facts["categories"] = categories
    if missing == "mean":
        facts["feature_means"] = {
            feature.name: feature.mean for feature in chosen if not feature.is_categorical
        }
    if missing == "drop":
        facts["skipped"] = int(len(is_kept) - len(rows))
    pairs = {name: scan.read_target(name) for name in targets}
    values, classes = ({name: pair[place] for name, pair in pairs.items()} for place in (0, 1))
    if any(classes.values()):
        facts["class_names"] = pick(classes, target)
    names = (f"{path}: features", f"{path}: {target}" if isinstance(target, str) else path)
    groups, splits = scan.join_labels("group"), scan.join_labels("split")
    return Arrays(rows, pick(values, target), names, facts, groups=groups, splits=splits)


@dataclass
class _Feature:
    """A column, and what a pass over the table has found in it."""

    name: str
    is_categorical: bool
    is_integer: bool = False
    categories: list[Any] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    @property
    def category_names(self) -> tuple[str | None, ...]:
        """The categories as text, sorted; None, the last, if values are missing."""
        return tuple(None if category is None else str(category) for category in self.categories)

    @property
    def mean(self) -> float:
        """The mean of the values that are not missing."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True)
class _Encoder:
    """The encoding of the columns of a batch as features."""

    features: Sequence[_Feature]
    encoding: Encoding
    fill: float
    """The value for missing numbers."""
    uses_means: bool
    """True for the mean of the column instead."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features: of the column, or ``column=category``."""
        names: list[str] = []
        for feature in self.features:
            if feature.is_categorical and self.encoding == "one_hot":
                names += [f"{feature.name}={name or ''}" for name in feature.category_names]
            else:
                names.append(feature.name)
        return tuple(names)

    def encode(self, feature: _Feature, column: Any) -> tuple[np.ndarray, int]:
        """Return the column of `join_features` for *feature*."""
        if feature.is_categorical:
            count = len(feature.categories) if self.encoding == "one_hot" else 0
            return _to_codes(column, feature), count
        values = to_floats(column)
        return np.where(np.isnan(values), feature.mean if self.uses_means else self.fill, values), 0


def _store(file: TableParts, encoder: _Encoder, is_kept: np.ndarray) -> np.ndarray:
    """Return the features of the rows that are samples, (N, F) float32, mapped into memory.

    *is_kept* is true for such a row. Raises `DataError` if the table has not as many rows.
    """
    start, width = 0, len(encoder.feature_names)
    stored = RowFile((width,), np.dtype(np.float32), on_disk=True)
    for batch in file.batches([feature.name for feature in encoder.features], _batch_rows(width)):
        pairs = zip(encoder.features, batch.columns, strict=True)
        columns = (encoder.encode(feature, column) for feature, column in pairs)
        block = join_features(columns, (batch.num_rows, width))
        is_in_block = is_kept[start : start + batch.num_rows]
        stored.append(block[: len(is_in_block)][is_in_block])
        start += batch.num_rows
    if start != len(is_kept):
        raise DataError(f"{file.path} was changed while it was read. Run load-data again")
    return stored.join()


def join_features(columns: Iterable[tuple[np.ndarray, int]], shape: tuple[int, int]) -> np.ndarray:
    """Return *columns* side by side, (N, F) float32.

    A column is its values and 0, or its codes and the number of its categories. Each category is a feature; a
    code of -1 belongs to no category.
    """
    block = np.zeros(shape, np.float32)
    place = 0
    for values, count in columns:
        if not count:
            block[:, place] = values
        else:
            with_category = np.flatnonzero(values >= 0)
            block[with_category, place + values[with_category]] = 1
        place += count or 1
    return block


@dataclass
class _Scan:
    """The first pass over a table: it checks all values, and finds categories, means and targets."""

    file: TableParts
    features: list[_Feature]
    targets: dict[str, list[Any]]
    """The values of each target in each batch."""
    extra: Mapping[str, str]
    """The columns of the ``split`` and the ``group``, if there are any."""
    missing: Missing
    task: Task | None
    path: Path
    """The file that is read, or the table."""
    labels: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    """The values of the columns in *extra* in each batch."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of samples of each split of the files."""

    def run(self) -> np.ndarray:
        """Read the table, and return whether each row is a sample. Raises `DataError` for a wrong value."""
        names = [feature.name for feature in self.features]
        columns = [*names, *self.targets, *self.extra.values()]
        masks = []
        for split, file in self.file.parts:
            self.path, start = file.path, 0
            for batch in file.batches(columns, _batch_rows(len(columns))):
                masks.append(self._check(batch, start))
                start += batch.num_rows
                self.counts[split] += int(np.count_nonzero(masks[-1]))
        for feature in self.features:
            feature.categories.sort(key=lambda value: (value is None, 0 if value is None else value))
        return np.concatenate(masks) if masks else np.zeros(0, bool)

    def join_labels(self, name: str) -> np.ndarray | None:
        """Return the ``split`` or the ``group`` of each sample; None if no column and no file has it."""
        if self.labels.get(name):
            return np.concatenate(self.labels[name])
        if name == "split" and len(self.counts) > 1:
            return np.repeat(list(self.counts), list(self.counts.values()))
        return None

    def read_target(self, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """Return the target *name* of the samples, and the names of the classes if they are text.

        It is forgotten, so that a large table has it in memory once.
        """
        arrow = load_arrow()
        column = self._join_target(name)
        if is_text(column.type):
            names = tuple(sorted(column.unique().to_pylist()))
            codes = load_arrow(".compute").index_in(column, value_set=arrow.array(names, column.type))
            return codes.to_numpy().astype(np.int64), names
        is_float = arrow.types.is_floating(column.type) or self.task == "regression"
        values = column.to_numpy().astype(np.float64 if is_float else np.int64, copy=False)
        del column
        arrow.default_memory_pool().release_unused()
        return values, None

    def _join_target(self, name: str) -> Any:
        arrow = load_arrow()
        targets, self.targets[name] = self.targets[name], []
        try:
            return arrow.chunked_array(targets) if targets else arrow.chunked_array([[]], "float64")
        except (arrow.ArrowException, TypeError) as error:
            types = ", ".join({str(part.type): None for part in targets})
            raise DataError(
                f"{self.file.path}: the column {name!r} has the types {types} in its files. Write "
                "files with the same types"
            ) from error

    def _check(self, batch: Any, start: int) -> np.ndarray:
        ends = len(self.features), len(self.features) + len(self.targets)
        columns = batch.columns[: ends[0]]
        targets = dict(zip(self.targets, batch.columns[ends[0] : ends[1]], strict=True))
        is_missing = np.zeros(batch.num_rows, bool)
        for feature, column in zip(self.features, columns, strict=True):
            is_missing |= self._check_feature(feature, column, start)
        for name, target in targets.items():
            is_absent = _find_missing(target)
            if is_absent.any() and self.missing != "drop":
                self._refuse(name, start + int(is_absent.argmax()), "a missing target", "drop")
            is_missing |= is_absent
        is_sample = ~is_missing if self.missing == "drop" else np.ones(batch.num_rows, bool)
        for name, column in zip(self.extra, batch.columns[ends[1] :], strict=True):
            self.labels[name].append(self._read_labels(name, column, start)[is_sample])
        for name, target in targets.items():
            decoded = decode(target).filter(load_arrow().array(is_sample))
            is_decimal = load_arrow().types.is_decimal(decoded.type)
            self.targets[name].append(decoded.cast(load_arrow().float64()) if is_decimal else decoded)
        for feature, column in zip(self.features, columns, strict=True):
            if feature.is_categorical:
                self._add_categories(feature, decode(column).filter(load_arrow().array(is_sample)))
        return is_sample

    def _read_labels(self, name: str, column: Any, start: int) -> np.ndarray:
        is_absent = _find_missing(column)
        if is_absent.any():
            raise DataError(
                f"{self.path}: column {self.extra[name]!r}, the {name} of each row, has a missing value in "
                f"row {start + int(is_absent.argmax())}, counted from 0. Correct it"
            )
        return np.array([str(label) for label in decode(column).to_pylist()])

    def _check_feature(self, feature: _Feature, column: Any, start: int) -> np.ndarray:
        """Return whether each value is missing, and add the others to the mean."""
        is_missing = _find_missing(column)
        if is_missing.any() and self.missing == "error":
            self._refuse(
                feature.name, start + int(is_missing.argmax()), "a missing value", "drop, mean or constant"
            )
        if not feature.is_categorical:
            present = np.flatnonzero(~is_missing)
            values = to_floats(column)[present]
            if feature.is_integer:
                numbers = column.to_numpy(zero_copy_only=False)[present]
                self._check_integers(feature.name, numbers, values, start + present)
            if not np.isfinite(values).all():
                row = start + present[(~np.isfinite(values)).argmax()]
                raise DataError(
                    f"{self.path}: column {feature.name!r} must have finite float32 numbers; "
                    f"found another in row {row}, counted from 0. Correct the row, or leave the column "
                    "out of load_data.source.features"
                )
            feature.total += float(values.sum(dtype=np.float64))
            feature.count += len(values)
        return is_missing

    def _check_integers(self, name: str, numbers: np.ndarray, values: np.ndarray, rows: np.ndarray) -> None:
        """Raise `DataError` if a float32 in *values* is not the integer of *numbers*, the column *name*.

        A CSV file may have other numbers after those from which its types were found. *rows* are their rows.
        """
        wrong = np.flatnonzero((values != numbers) & (numbers == np.floor(numbers)))
        if len(wrong):
            raise DataError(
                f"{self.path}: column {name!r} has {int(numbers[wrong[0]])} in row {rows[wrong[0]]}, "
                f"counted from 0, which float32 rounds to {int(values[wrong[0]])}. Subtract an offset, write "
                "the column as floats to accept the rounding, or leave it out of load_data.source.features"
            )

    def _add_categories(self, feature: _Feature, column: Any) -> None:
        categories = set(feature.categories)
        values = [None if value != value else value for value in column.unique().to_pylist()]  # NaN
        feature.categories += [value for value in dict.fromkeys(values) if value not in categories]
        if len(feature.categories) > MAX_CATEGORIES:
            raise DataError(
                f"{self.path}: column {feature.name!r} has more than {MAX_CATEGORIES:,} categories. "
                "Leave it out of load_data.source.features"
            )

    def _refuse(self, name: str, row: int, problem: str, rules: str) -> None:
        raise DataError(
            f"{self.path}: column {name!r} has {problem} in row {row}, counted from 0. Correct it, or "
            f"set load_data.source.missing to {rules}"
        )


def _select(names: Sequence[str], used: set[str], patterns: Sequence[str] | None, path: str) -> list[str]:
    """Return the names of the features, which are not *used* otherwise. Raises `DataError` without one."""
    others = [name for name in names if name not in used]
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in others):
            raise DataError(
                f"load_data.source.features: no column of {path} except the target matches {pattern!r}."
                f"{closest(pattern, others)} Columns: {', '.join(others)}"
            )
    selected = [name for name in others if patterns is None or _is_match(name, patterns)]
    if not selected:
        raise DataError(f"{path} has no column for a feature. Add one, or correct load_data.source.features")
    return selected


def _is_match(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _set_types(file: TableParts, features: list[_Feature], targets: Sequence[str], task: Task | None) -> None:
    """Check the types of the columns, and set those of a file that has none: floats and text."""
    arrow = load_arrow()
    types: dict[str, Any] = {}
    for feature in features:
        kind = file.schema.field(feature.name).type
        file.check_types(feature.name)
        if feature.is_categorical:
            types[feature.name] = arrow.string()
        elif arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_null(kind):
            types[feature.name] = arrow.float64()
            feature.is_integer = arrow.types.is_integer(kind)
        elif not is_number(kind):
            raise DataError(
                f"{file.path}: column {feature.name!r} has the type {kind}, which is not a number. "
                "Add it to load_data.source.categorical, or leave it out of load_data.source.features"
            )
    for target in targets:
        _check_target(file, target, task)
        if task == "regression":
            types[target] = arrow.float64()
    file.convert(types)


def _check_target(file: TableParts, target: str, task: Task | None) -> None:
    """Raise `DataError` if the column *target* is of no type of targets."""
    arrow = load_arrow()
    kind = file.schema.field(target).type
    file.check_types(target)
    if not is_number(kind) and not (is_text(kind) and task != "regression"):
        raise DataError(
            f"load_data.source.target: column {target!r} of {file.path} has the type {kind}. "
            "Use a column of numbers, or one of text for classes"
        )
    is_decimal = arrow.types.is_decimal(kind)
    if task == "classification" and (is_decimal or arrow.types.is_floating(kind)):
        raise DataError(
            f"load_data.source.task: column {target!r} of {file.path} has the type {kind}, but classes are "
            "integers or text. Convert the column"
        )


def decode(column: Any) -> Any:
    """Return the values of a column that may be stored as numbers of a dictionary, or as views."""
    column = column.dictionary_decode() if isinstance(column, load_arrow().DictionaryArray) else column
    is_large = is_text(column.type)  # not every function supports views
    return column.cast(load_arrow().large_string()) if is_large else column


def _find_missing(column: Any) -> np.ndarray:
    """Return whether each value is null or NaN."""
    return np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), bool)


def to_floats(column: Any) -> np.ndarray:
    """Return the numbers in *column* as float32; missing ones are NaN."""
    arrow = load_arrow()
    if arrow.types.is_decimal(column.type) or arrow.types.is_boolean(column.type):
        column = column.cast(arrow.float64() if arrow.types.is_decimal(column.type) else arrow.uint8())
    values = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32)


def _to_codes(column: Any, feature: _Feature) -> np.ndarray:
    """Return the number of the category of each value."""
    decoded = decode(column)
    categories = load_arrow().array(feature.categories, decoded.type)
    codes = load_arrow(".compute").index_in(decoded, value_set=categories)
    absent = feature.categories.index(None) if None in feature.categories else -1
    return np.asarray(codes.fill_null(absent).to_numpy(zero_copy_only=False))


def _batch_rows(columns: int) -> int:
    """Return the number of rows of a batch of `BLOCK_BYTES` with *columns* numbers in a row."""
    return max(1, BLOCK_BYTES // (4 * columns))
