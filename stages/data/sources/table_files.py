"""Readers of tables: CSV, Parquet and Arrow files, in batches of rows."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any

from stages.contracts.errors import DataError
from stages.contracts.plugins import load_extra
from stages.data.sources.labels import TO_UTF8, check_unique_names
from stages.records.limits import Limits

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""The format of a table by the ending of its name."""
UNNAMED = re.compile(r"|Unnamed: \d+")
"""Names in CSV files of columns without a name, to which pandas writes the index of the rows."""
CSV_BLOCK_BYTES = 4 << 20
"""The part of a CSV file that is parsed at a time."""
BUFFER_BYTES = 1 << 20
"""The part of a column in a Parquet file that is read at a time."""


@dataclass(frozen=True)
class CsvFormat:
    """The format of CSV files."""

    delimiter: str | None = None
    """The character between two values; None: a tab in files that end in ``.tsv``, otherwise a comma."""
    decimal: str = "."
    """The character before the decimals of a number."""
    missing_values: Sequence[str] | None = None
    """The texts that are missing values; None: those of Arrow, such as an empty one and ``NA``."""
    header: bool = True
    """True if the first line has the names of the columns; otherwise they are ``f0``, ``f1`` and so on."""


def load_arrow(module: str = "") -> Any:
    """Return pyarrow, or one of its modules. Raises `PluginError` if it is not installed."""
    return load_extra(f"pyarrow{module}", "tables", "the data source 'table'")


class TableFile:
    """A table in one file."""

    def __init__(self, path: Path, argument: str, csv_format: CsvFormat) -> None:
        """Open the file *path*, the *argument* of the source.

        Raises `DataError` if it is missing or not a table.
        """
        self.path = path
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"load_data.source.{argument}: {str(path)!r} must end in one of {', '.join(SUFFIXES)}. "
                "Rename or convert it"
            )
        if not path.is_file():
            raise DataError(f"load_data.source.{argument}: there is no file {str(path)!r}. Correct the path")
        self._kind = SUFFIXES[path.suffix.lower()]
        self._types: dict[str, Any] = {}
        self._format = csv_format
        if self._kind != "csv" and csv_format != CsvFormat():
            raise DataError(
                f"load_data.source.{argument}: {str(path)!r} is not a CSV file. Remove delimiter, decimal, "
                "missing_values and header"
            )
        self.schema = self._read_schema()
        check_unique_names([name for name in self.schema.names if not UNNAMED.fullmatch(name)], path)

    @property
    def is_csv(self) -> bool:
        """True if the columns have no types but those that were found in their values."""
        return self._kind == "csv"

    @property
    def index_names(self) -> set[str]:
        """The columns that pandas wrote as the index of its rows, or that have no name in a CSV file."""
        named: set[str] = set()
        with suppress(ValueError, TypeError, AttributeError, RecursionError):  # not written by pandas
            pandas = json.loads((self.schema.metadata or {}).get(b"pandas", b"{}"))
            named = {name for name in pandas.get("index_columns", ()) if isinstance(name, str)}
        return named | {name for name in self.schema.names if UNNAMED.fullmatch(name)}

    def convert(self, types: dict[str, Any]) -> None:
        """Read the columns in *types* with these types, if the file itself has none."""
        self._types = types

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield the *columns* of all rows in their order, in record batches of at most *rows*.

        Raises `DataError` if a part of the file cannot be read, or if the values of a column take much more
        memory than the file has bytes.
        """
        arrow, sizes = load_arrow(), [0] * len(columns)
        try:
            for batch in self._open(list(columns), rows):
                selected = batch.select(list(columns))
                if not self.is_csv:
                    selected.validate(full=True)  # Arrow trusts the offsets in a file, and would crash
                    sizes = list(map(add, sizes, map(_count_bytes, selected.columns)))
                    self._check_expansion(max(sizes, default=0))
                for start in range(0, batch.num_rows, rows):
                    yield selected.slice(start, rows)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} cannot be read: {_explain(error)}") from error

    def _check_expansion(self, size: int) -> None:
        """Raise `DataError` if *size* bytes are more than a record as large as the file may expand to.

        It is that of one column, since no more is in memory at a time. Together, columns with few values may
        expand much more.
        """
        limit = Limits.for_size(self.path.stat().st_size).content
        if size > limit:
            raise DataError(
                f"a column of {self.path} expands to more than {limit:,} bytes, the most for a file of this "
                "size. If you trust it, save it as an Arrow file without compression, or as CSV"
            )

    def _read_schema(self) -> Any:
        arrow = load_arrow()
        try:
            if self._kind == "csv":
                with self._open_csv(None) as reader:
                    reader.schema.names  # noqa: B018  it raises an error for names that are not UTF-8
                    return reader.schema
            if self._kind == "parquet":
                with load_arrow(".parquet").ParquetFile(self.path) as file:
                    return file.schema_arrow
            with arrow.OSFile(str(self.path)) as source:
                return load_arrow(".ipc").open_file(source).schema
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} is not a readable table: {_explain(error)}") from error

    def _open(self, columns: list[str], rows: int) -> Iterator[Any]:
        if self._kind == "csv":
            with self._open_csv(columns) as reader:
                yield from reader
        elif self._kind == "parquet":
            texts = [name for name in columns if is_text(self.schema.field(name).type)]
            options = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "read_dictionary": texts}
            with load_arrow(".parquet").ParquetFile(self.path, **options) as file:
                for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
                    values = [*map(_drop_unused_texts, batch.columns)]
                    yield load_arrow().record_batch(values, names=batch.schema.names)
        else:
            with load_arrow().OSFile(str(self.path)) as source:
                reader = load_arrow(".ipc").open_file(source)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def _open_csv(self, columns: list[str] | None) -> Any:
        csv, form = load_arrow(".csv"), self._format
        delimiter = form.delimiter or ("\t" if self.path.suffix.lower() == ".tsv" else ",")
        missing = {} if form.missing_values is None else {"null_values": list(form.missing_values)}
        return csv.open_csv(
            self.path,
            read_options=csv.ReadOptions(
                block_size=CSV_BLOCK_BYTES, use_threads=False, autogenerate_column_names=not form.header
            ),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=columns,
                column_types=self._types,
                strings_can_be_null=True,
                decimal_point=form.decimal,
                **missing,
            ),
        )


def _drop_unused_texts(column: Any) -> Any:
    """Return *column*, which has all texts that Parquet's reader has found so far, with its own only."""
    if not load_arrow().types.is_dictionary(column.type):
        return column
    codes = column.indices.dictionary_encode()
    return load_arrow().DictionaryArray.from_arrays(codes.indices, column.dictionary.take(codes.dictionary))


def _count_bytes(column: Any) -> int:
    """Return the bytes of the values of *column*; texts that occur several times count each time."""
    if not load_arrow().types.is_dictionary(column.type) or not is_text(column.type):
        return int(column.nbytes)
    compute = load_arrow(".compute")
    lengths = compute.binary_length(column.dictionary.cast(load_arrow().large_string()))
    return int(column.indices.nbytes + (compute.sum(lengths.take(column.indices)).as_py() or 0))


def _explain(error: Exception) -> str:
    """Return the message of *error*, and what to do."""
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
        return f"it is not UTF-8. {TO_UTF8}"
    return f"{error}. Correct the file"


class TableParts:
    """Files with the same columns, which are read one after the other as one table."""

    def __init__(self, paths: Mapping[str, str | None], csv_format: CsvFormat) -> None:
        """Open the files of each split: one, or all in a folder in the order of their names.

        Raises `DataError` if one is missing or not a table, or if its columns differ from those of the first.
        """
        self.parts = [
            (split, TableFile(file, SPLIT_PATHS[split], csv_format))
            for split, path in paths.items()
            if path is not None
            for file in _list_files(Path(path), SPLIT_PATHS[split])
        ]
        """The files, each with the split of its rows."""
        _, first = self.parts[0]
        self.path = Path(str(paths["train"]))
        self.schema = first.schema
        self.index_names = first.index_names
        for _, file in self.parts[1:]:
            if file.schema.names != first.schema.names:
                raise DataError(
                    f"{file.path} has the columns {', '.join(file.schema.names)}, but {first.path} "
                    f"has {', '.join(first.schema.names)}. Write files with the same columns"
                )

    def convert(self, types: dict[str, Any]) -> None:
        """Read the columns in *types* with these types, if the files themselves have none."""
        for _, file in self.parts:
            file.convert(types)

    def check_types(self, column: str) -> None:
        """Raise `DataError` if *column* has text in another encoding, or other kinds of values by file."""
        _, first = self.parts[0]
        if first.is_csv and load_arrow().types.is_binary(first.schema.field(column).type):
            raise DataError(f"{first.path}: column {column!r} has text that is not UTF-8. {TO_UTF8}")
        for _, file in self.parts[1:]:
            kinds = [table.schema.field(column).type for table in (first, file)]
            if not file.is_csv and len({_group(kind) for kind in kinds}) > 1:
                raise DataError(
                    f"{file.path}: column {column!r} has the type {kinds[1]}, but in {first.path} it "
                    f"has {kinds[0]}. Write files with the same types"
                )

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield the *columns* of all rows of all files in their order, as `TableFile.batches` does."""
        for _, file in self.parts:
            yield from file.batches(columns, rows)


SPLIT_PATHS = {"train": "path", "valid": "valid_path", "test": "test_path"}
"""The argument with the files of each split."""


def is_text(kind: Any) -> bool:
    """Return whether *kind* is a type of Arrow for text, also as numbers of a dictionary."""
    types = load_arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: Any) -> bool:
    """Return whether *kind* is a type of Arrow for numbers or truth values."""
    types = load_arrow().types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def _group(kind: Any) -> str:
    return "text" if is_text(kind) else "number" if is_number(kind) else str(kind)


def _list_files(path: Path, argument: str) -> list[Path]:
    """Return *path*, or the tables in it if it is a folder, sorted by name."""
    if not path.is_dir():
        return [path]
    files = sorted(
        file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] not in "._"
    )
    if not files:
        raise DataError(
            f"load_data.source.{argument}: the folder {str(path)!r} has no file that ends in one of "
            f"{', '.join(SUFFIXES)}. Correct the path"
        )
    return files
