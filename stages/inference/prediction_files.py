"""Files of predictions: CSV, Parquet or JSON lines, written while they are computed."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from stages.contracts.errors import ParamsError
from stages.contracts.plugins import load_extra
from stages.inference.trained_model import Predictions
from stages.system.files import open_atomic

Rows = list[dict[str, Any]]


def write_predictions(path: Path, blocks: Iterator[tuple[Sequence[str], Predictions]]) -> int:
    """Write a row for each sample of *blocks* to *path*, in the format of its suffix; return their number.

    A row has the ``name`` of the sample and, for classes, the ``class`` and the probability of each class as
    ``p(CLASS)``; for regression ``value``, or ``value 0``, ``value 1`` and so on. The file appears when it is
    complete. Raises `ParamsError` for another suffix than ``.csv``, ``.jsonl`` or ``.parquet``.
    """
    if path.suffix not in _WRITERS:
        raise ParamsError(f"--out: {path} must end in one of {', '.join(_WRITERS)}. Rename it")
    count = 0
    with open_atomic(path) as file:
        writer = _WRITERS[path.suffix](file)
        for names, predictions in blocks:
            writer.write(to_rows(names, predictions))
            count += len(names)
        writer.finish()
    return count


def to_rows(names: Sequence[str], predictions: Predictions) -> Rows:
    """Return a row for each sample; see `write_predictions`."""
    if predictions.probabilities is None:
        values = predictions.outputs.to(torch.float64).reshape(len(names), -1)
        width = values.shape[1]
        titles = ["value"] if width == 1 else [f"value {number}" for number in range(width)]
        columns = values.tolist()
        return [
            {"name": name, **dict(zip(titles, row, strict=True))}
            for name, row in zip(names, columns, strict=True)
        ]
    if predictions.probabilities.ndim > 2:
        raise ParamsError(
            "the model predicts a class for each position of a sample, which a table has no column for. Call "
            "stages.load_model in a program"
        )
    labels, columns = predictions.labels, predictions.probabilities.tolist()
    titles = [f"p({name})" for name in predictions.class_names or range(len(columns[0]))]
    return [
        {"name": name, "class": label, **dict(zip(titles, row, strict=True))}
        for name, label, row in zip(names, labels, columns, strict=True)
    ]


class _CsvWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        self._writer: csv.DictWriter[str] | None = None

    def write(self, rows: Rows) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._text, list(rows[0]), lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerows(rows)

    def finish(self) -> None:
        self._text.detach()


class _JsonLinesWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, rows: Rows) -> None:
        self._file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)

    def finish(self) -> None:
        """Do nothing: each line is complete."""


class _ParquetWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._arrow = load_extra("pyarrow", "tables", "a file of predictions that ends in .parquet")
        self._file = file
        self._writer: Any = None

    def write(self, rows: Rows) -> None:
        table = self._arrow.Table.from_pylist(rows)
        if self._writer is None:
            parquet = load_extra("pyarrow.parquet", "tables", "a file of predictions that ends in .parquet")
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()


_WRITERS: dict[str, type[_CsvWriter | _JsonLinesWriter | _ParquetWriter]] = {
    ".csv": _CsvWriter,
    ".jsonl": _JsonLinesWriter,
    ".parquet": _ParquetWriter,
}
