"""Readers of tables: CSV, Parquet and Arrow files, in batches of rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

    def __init__(self, path: Path, argument: str = "path") -> None:
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


@dataclass(frozen=True)
class TablePart:
    """A file of a table, and the split of its rows."""

    split: str
    file: TableFile


class TableParts:
    """Files with the same columns, which are read one after the other as one table."""

    def __init__(self, paths: Mapping[str, str | None]) -> None:
        """Open the files of each split: one, or all in a folder in the order of their names.

        Raises `DataError` if one is missing or not a table, or if its columns differ from those of the first.
        """
        self.parts = [
            TablePart(split, TableFile(each, SPLIT_PATHS[split]))
            for split, path in paths.items()
            if path is not None
            for each in _list_files(Path(path), SPLIT_PATHS[split])
        ]
        first = self.parts[0].file
        self.path = Path(str(paths["train"]))
        self.schema = first.schema
        for part in self.parts[1:]:
            if part.file.schema.names != first.schema.names:
                raise DataError(
                    f"{part.file.path} has the columns {', '.join(part.file.schema.names)}, but {first.path} "
                    f"has {', '.join(first.schema.names)}. Write files with the same columns"
                )

    def convert(self, types: dict[str, Any]) -> None:
        """Read the columns in *types* with these types, if the files themselves have none."""
        for part in self.parts:
            part.file.convert(types)

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield the *columns* of all rows of all files in their order, as `TableFile.batches` does."""
        for part in self.parts:
            yield from part.file.batches(columns, rows)


SPLIT_PATHS = {"train": "path", "valid": "valid_path", "test": "test_path"}
"""The argument with the files of each split."""


def _list_files(path: Path, argument: str) -> list[Path]:
    """Return *path*, or the tables in it if it is a folder, sorted by name."""
    if not path.is_dir():
        return [path]
    found = sorted(
        each for each in path.iterdir() if each.suffix.lower() in SUFFIXES and each.name[0] not in "._"
    )
    if not found:
        raise DataError(
            f"load_data.source.{argument}: the folder {str(path)!r} has no file that ends in one of "
            f"{', '.join(SUFFIXES)}. Correct the path"
        )
    return found
