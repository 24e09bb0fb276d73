"""Files of inputs, of the kind that the source of the training reads, and files of predictions.

Inputs are read in blocks of samples. Predictions are written as CSV, Parquet or JSON lines while they are
computed.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from stages.contracts.errors import DataError, ParamsError
from stages.contracts.plugins import load_extra
from stages.data.image_files import ImageFiles, ImageFormat
from stages.data.sources.array_files import map_npy, read_npz
from stages.data.sources.image_folder import SUFFIXES as IMAGE_SUFFIXES
from stages.data.sources.labels import describe_read_error, list_unlabeled
from stages.data.sources.table_files import SUFFIXES as TABLE_SUFFIXES
from stages.data.sources.table_files import CsvFormat, TableFile, load_arrow
from stages.data.sources.tables import decode, join_features, to_floats
from stages.data.sources.texts import pick_field, read_samples
from stages.data.storage import DatasetInfo
from stages.system.files import open_atomic, open_text

if TYPE_CHECKING:
    from stages.inference.trained_model import Predictions

CSV_OPTIONS = ("delimiter", "decimal", "missing_values", "header")
"""The keys of the source ``table`` that describe a CSV file."""
NAMES_OF_ARRAYS = (("inputs",), ("x_test",))
"""Names in an archive, of which the first that it has is read."""
TEXT_SUFFIXES = (".txt",)
Rows = list[dict[str, Any]]
"""The values of each sample by their columns."""


@dataclass(frozen=True)
class InputBlock:
    """Samples that are in memory at the same time."""

    names: Sequence[str]
    """The path of the file of each sample, with its number from 0 if the file has several."""
    samples: Any
    """An array (N, …), or a list of texts."""


def read_inputs(
    paths: Sequence[Path], info: DatasetInfo, source: Mapping[str, Any], rows: int
) -> Iterator[InputBlock]:
    """Yield the samples in *paths*, in blocks of at most *rows*.

    A path is a folder of images or an image; a table with the columns of the training; a file of texts, one
    in each line, or a CSV, TSV or JSON lines file with the column of the training; or a ``.npy`` or ``.npz``
    file. *info* describes the training data, and *source* is ``load_data.source`` of the run.

    Raises `DataError` for a file that cannot be read, and for one of another kind than the training data.
    """
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist. Correct the path")
        count = 0
        try:
            for block in _read(path, info, source, rows):
                _check_finite(block)
                count += len(block.names)
                yield block
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path} cannot be read: {describe_read_error(error)}") from error
        if not count:
            raise DataError(f"{path} has no samples. Correct the path, or remove it")


def _check_finite(block: InputBlock) -> None:
    """Raise `DataError` for a NaN or an infinity, which the training data cannot have."""
    samples = block.samples
    if not isinstance(samples, np.ndarray) or samples.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        wrong = np.argwhere(~np.isfinite(samples.astype(np.float32, copy=False)))
    if len(wrong):
        place = tuple(wrong[0])
        raise DataError(
            f"{block.names[place[0]]}: inputs must be finite float32 numbers; found {samples[place]}. "
            "Correct or remove the sample"
        )


def _read(path: Path, info: DatasetInfo, source: Mapping[str, Any], rows: int) -> Iterator[InputBlock]:
    if path.suffix.lower() in (".npy", ".npz"):
        yield from _read_arrays(path, rows)
    elif info.tokenizer is not None:
        yield from _read_texts(path, str(source.get("text", "text")), rows)
    elif info.feature_names is not None:
        yield from _read_table(path, info, source, rows)
    elif path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        yield from _read_images(path, info, source, rows)
    else:
        raise DataError(
            f"{path} cannot be read as an input of this model. Pass a folder of images, an image, or a .npy "
            "or .npz file"
        )


def _read_arrays(path: Path, rows: int) -> Iterator[InputBlock]:
    if path.suffix.lower() == ".npy":
        array = map_npy(path, "INPUT")
    else:
        (array,) = read_npz(path, *NAMES_OF_ARRAYS).values()
    for start in range(0, len(array), rows):
        block = np.array(array[start : start + rows])
        yield InputBlock([f"{path}:{start + row}" for row in range(len(block))], block)


def _read_images(path: Path, info: DatasetInfo, source: Mapping[str, Any], rows: int) -> Iterator[InputBlock]:
    shape = info.input_shape
    if isinstance(shape, dict) or len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"{path}: the model takes samples of the shape {shape}, not images")
    channels, height, width = shape
    form = ImageFormat(
        root=str(path if path.is_dir() else path.parent),
        mode="gray" if channels == 1 else "rgb",
        size=(height, width),
        resize=source.get("size") is not None,
    )
    names = [path.name]
    if path.is_dir():
        names = sorted(file.path for file in list_unlabeled(path, IMAGE_SUFFIXES))
    images = ImageFiles(form, names)
    for start in range(0, len(names), rows):
        block = slice(start, start + rows)
        yield InputBlock([f"{form.root}/{name}" for name in names[block]], images[block])


def _read_texts(path: Path, column: str, rows: int) -> Iterator[InputBlock]:
    samples = _iterate_texts(path, column)
    while block := list(islice(samples, rows)):
        names, texts = zip(*block, strict=True)
        if "" in texts:
            raise DataError(f"{names[texts.index('')]}: the text is empty. Remove it")
        yield InputBlock(names, list(texts))


def _iterate_texts(path: Path, column: str) -> Iterator[tuple[str, str]]:
    if path.is_dir():
        for listed in list_unlabeled(path, TEXT_SUFFIXES):
            file = path / listed.path
            with open_text(file) as lines:
                yield str(file), lines.read()
        return
    if (samples := read_samples(path)) is not None:
        for line, row in samples:
            yield f"{path}:{line}", str(pick_field(row, column, "text", f"{path}, line {line}"))
        return
    with path.open(encoding="utf-8-sig") as lines_of_text:
        for number, content in enumerate(lines_of_text):
            yield f"{path}:{number}", content.rstrip("\n")


def _read_table(path: Path, info: DatasetInfo, source: Mapping[str, Any], rows: int) -> Iterator[InputBlock]:
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(f"{path} must be a table, and end in one of {', '.join(TABLE_SUFFIXES)}")
    is_csv = TABLE_SUFFIXES[path.suffix.lower()] == "csv"
    options = {name: source[name] for name in CSV_OPTIONS if is_csv and name in source}
    file = TableFile(path, "INPUT", CsvFormat(**options))
    encoder = _TableEncoder(info, source)
    if absent := [name for name in encoder.columns if name not in file.schema.names]:
        raise DataError(
            f"{path} lacks columns of the training data: {', '.join(absent)}. Columns: "
            f"{', '.join(file.schema.names)}"
        )
    arrow, start = load_arrow(), 0
    types = dict.fromkeys(encoder.categories, arrow.string())
    for name in encoder.columns:
        if not (name in types or arrow.types.is_boolean(file.schema.field(name).type)):
            types[name] = arrow.float64()
    file.convert(types)
    for batch in file.batches(encoder.columns, rows):
        names = [f"{path}:{start + row}" for row in range(batch.num_rows)]
        yield InputBlock(names, encoder.encode(batch, names))
        start += batch.num_rows


class _TableEncoder:
    """The features of a table as `table` encodes them, from the description of the training data."""

    def __init__(self, info: DatasetInfo, source: Mapping[str, Any]) -> None:
        self.categories = info.categories or {}
        self._is_one_hot = source.get("encoding", "one_hot") == "one_hot"
        self._means = info.feature_means or {}
        self._fill = float(source.get("fill", 0.0)) if source.get("missing") == "constant" else None
        self._features = list(info.feature_names or ())
        self.columns = self._find_columns() if self._is_one_hot else self._features

    def _find_columns(self) -> list[str]:
        """Return the columns in the order of their features, of which each category has one."""
        first_features = {
            f"{name}={parts[0] or ''}": name for name, parts in self.categories.items() if parts
        }
        columns: list[str] = []
        place = 0
        while place < len(self._features):
            feature = self._features[place]
            column = first_features.pop(feature, feature)
            place += len(self.categories[column]) if column in self.categories else 1
            columns.append(column)
        return columns

    def encode(self, batch: Any, names: Sequence[str]) -> np.ndarray:
        """Return the features of *batch*, (N, F) float32."""
        pairs = zip(self.columns, batch.columns, strict=True)
        columns = (self._encode_column(name, column, names) for name, column in pairs)
        return join_features(columns, (batch.num_rows, len(self._features)))

    def _encode_column(self, name: str, column: Any, names: Sequence[str]) -> tuple[np.ndarray, int]:
        if name not in self.categories:
            return self._to_numbers(name, column, names), 0
        count = len(self.categories[name]) if self._is_one_hot else 0
        return self._to_codes(name, column, names), count

    def _to_numbers(self, name: str, column: Any, names: Sequence[str]) -> np.ndarray:
        values = to_floats(column)
        missing = np.flatnonzero(np.isnan(values))
        if len(missing):
            fill = self._means.get(name, self._fill)
            if fill is None:
                raise DataError(
                    f"{names[missing[0]]}: column {name!r} has a missing value, for which only "
                    "load_data.source.missing: mean and constant have a number"
                )
            values[missing] = fill
        return values

    def _to_codes(self, name: str, column: Any, names: Sequence[str]) -> np.ndarray:
        numbers = {category: number for number, category in enumerate(self.categories[name])}
        values = decode(column).to_pylist()
        texts = [None if value is None or value != value else str(value) for value in values]  # NaN
        unknown = next((row for row, text in enumerate(texts) if text not in numbers), None)
        if unknown is not None:
            raise DataError(
                f"{names[unknown]}: column {name!r} has {texts[unknown]!r}, which the training data does not "
                f"have. Categories: {', '.join(map(str, numbers))}"
            )
        return np.array([numbers[text] for text in texts], np.int64)


def write_predictions(path: Path, blocks: "Iterator[tuple[Sequence[str], Predictions]]") -> int:
    """Write a row for each sample of *blocks* to *path*, in the format of its suffix; return their number.

    A row has the ``name`` of the sample and, for classes, the ``class`` and the probability of each class as
    ``p(CLASS)``; for regression ``value``, or ``value 0``, ``value 1`` and so on. The file appears when it is
    complete. Raises `ParamsError` for another suffix than ``.csv``, ``.jsonl`` or ``.parquet``.
    """
    if path.suffix not in _WRITERS:
        raise ParamsError(f"--out: {path} must end in one of {', '.join(_WRITERS)}. Rename it")
    count = 0

    def iterate_rows() -> Iterator[Rows]:
        nonlocal count
        for names, predictions in blocks:
            count += len(names)
            yield to_rows(names, predictions)

    with open_atomic(path) as file:
        _WRITERS[path.suffix](file, iterate_rows())
    return count


def to_rows(names: Sequence[str], predictions: "Predictions") -> Rows:
    """Return a row for each sample; see `write_predictions`."""
    columns: dict[str, Sequence[Any]] = {"name": names}
    if predictions.probabilities is None:
        values = predictions.outputs.double().reshape(len(names), -1)
        width = values.shape[1]
        titles = ["value"] if width == 1 else [f"value {number}" for number in range(width)]
    else:
        values = predictions.probabilities
        if values.ndim > 2:
            raise ParamsError(
                "the model predicts a class for each position of a sample, which a table has no column for. "
                "Call stages.load_model in a program"
            )
        columns["class"] = predictions.labels
        titles = [f"p({predictions.name_class(number)})" for number in range(values.shape[1])]
    columns |= zip(titles, values.T.tolist(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _write_csv(file: BinaryIO, blocks: Iterator[Rows]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer: csv.DictWriter[str] | None = None
    for rows in blocks:
        if writer is None:
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
        writer.writerows(rows)
    text.detach()


def _write_json_lines(file: BinaryIO, blocks: Iterator[Rows]) -> None:
    for rows in blocks:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _write_parquet(file: BinaryIO, blocks: Iterator[Rows]) -> None:
    user = "a file of predictions that ends in .parquet"
    arrow, parquet = (load_extra(module, "tables", user) for module in ("pyarrow", "pyarrow.parquet"))
    with ExitStack() as stack:
        writer: Any = None
        for rows in blocks:
            table = arrow.Table.from_pylist(rows)
            writer = writer or stack.enter_context(parquet.ParquetWriter(file, table.schema))
            writer.write_table(table)


_WRITERS: dict[str, Callable[[BinaryIO, Iterator[Rows]], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
    ".parquet": _write_parquet,
}
