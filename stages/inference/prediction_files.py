"""Files of predictions: CSV, Parquet or JSON lines, written while they are computed."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stages.contracts.errors import ParamsError
from stages.contracts.plugins import load_extra
from stages.system.files import open_atomic

if TYPE_CHECKING:
    from stages.inference.trained_model import Predictions

Rows = list[dict[str, Any]]


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
        titles = [f"p({name})" for name in predictions.class_names or range(values.shape[1])]
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
