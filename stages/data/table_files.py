"""Readers of tables: CSV, Parquet and Arrow files, in batches of rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stages.contracts.errors import DataError
from stages.contracts.extras import load_extra

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""The format of a table by the ending of its name."""
CSV_BLOCK_BYTES = 4 << 20
"""The part of a CSV file that is parsed at a time."""
BUFFER_BYTES = 1 << 20
"""The part of a column in a Parquet file that is read at a time."""


def load_arrow(module: str = "") -> Any:
    """Return pyarrow, or one of its modules. Raises `PluginError` if it is not installed."""
    return load_extra(f"pyarrow{module}", "tables", "the data source 'table'")


class TableFile:
    """A table in one file."""

    def __init__(self, path: Path) -> None:
        """Open the file *path*. Raises `DataError` if it is missing or not a table."""
        self.path = path
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"load_data.source.path: {str(path)!r} must end in one of {', '.join(SUFFIXES)}. "
                "Rename or convert it"
            )
        if not path.is_file():
            raise DataError(f"load_data.source.path: there is no file {str(path)!r}. Correct the path")
        self._kind = SUFFIXES[path.suffix.lower()]
        self._types: dict[str, Any] = {}
        self.schema = self._read_schema()

    def convert(self, types: dict[str, Any]) -> None:
        """Read the columns in *types* with these types, if the file itself has none."""
        self._types = types

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield the *columns* of all rows in their order, in record batches of at most *rows*.

        Raises `DataError` if a part of the file cannot be read.
        """
        arrow = load_arrow()
        try:
            for batch in self._open(list(columns), rows):
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows).select(list(columns))
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path} cannot be read: {error}. Correct the file") from error

    def _read_schema(self) -> Any:
        arrow = load_arrow()
        try:
            if self._kind == "csv":
                with self._open_csv(None) as reader:
                    return reader.schema
            if self._kind == "parquet":
                with load_arrow(".parquet").ParquetFile(self.path) as file:
                    return file.schema_arrow
            with arrow.OSFile(str(self.path)) as source:
                return load_arrow(".ipc").open_file(source).schema
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path} is not a readable table: {error}. Correct the file") from error

    def _open(self, columns: list[str], rows: int) -> Iterator[Any]:
        if self._kind == "csv":
            with self._open_csv(columns) as reader:
                yield from reader
        elif self._kind == "parquet":
            options = {"buffer_size": BUFFER_BYTES, "pre_buffer": False}
            with load_arrow(".parquet").ParquetFile(self.path, **options) as file:
                yield from file.iter_batches(batch_size=rows, columns=columns, use_threads=False)
        else:
            with load_arrow().OSFile(str(self.path)) as source:
                reader = load_arrow(".ipc").open_file(source)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def _open_csv(self, columns: list[str] | None) -> Any:
        csv = load_arrow(".csv")
        return csv.open_csv(
            self.path,
            read_options=csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False),
            parse_options=csv.ParseOptions(delimiter="\t" if self.path.suffix.lower() == ".tsv" else ","),
            convert_options=csv.ConvertOptions(
                include_columns=columns, column_types=self._types, strings_can_be_null=True
            ),
        )
