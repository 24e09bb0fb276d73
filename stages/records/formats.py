"""Every form a record takes in a file, by name and by suffix; no torch here."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from stages.contracts.errors import RecordError
from stages.contracts.files import written_whole
from stages.records.demand import Demand
from stages.records.flat import burnpack
from stages.records.flat import safetensors_format as safetensors
from stages.records.gzipped.source import GzipSource
from stages.records.gzipped.writer import GzipWriter
from stages.records.named import json_format, json_reader, messagepack, messagepack_reader
from stages.records.named.container import packed, unpacked
from stages.records.nameless import bincode, bincode_reader
from stages.records.source import Limits, PlainSource, Source
from stages.records.tree import Record, Tree

Pieces = Iterator[bytes | memoryview]
WRITE_SIZE = 1 << 20
"""Small pieces are joined to about this many bytes for one write."""


@dataclass(frozen=True)
class Format:
    """How a record is laid out in a file."""

    name: str
    """As params and ``--recorder`` say it."""
    suffix: str
    type_name: str
    """Of Burn's recorder, for the metadata."""
    encoded: Callable[[Record], Pieces]
    decoded: Callable[[Source, Tree, bool], Record]
    """From the source, an example tree (only bincode needs one), and whether to keep the tensors' bytes."""
    gzipped: bool = False
    has_names: bool = True
    """Whether it can be read without an example."""
    memory_needed: Callable[[Demand, int], int] | None = None
    """The memory that a reader needs for small values, less what the length of the content allows; None if
    the format itself bounds them."""


def _named(codec: Callable[[Tree], Pieces], record: Record) -> Pieces:
    return codec(packed(record))


def _read_messagepack(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: ARG001, FBT001
    tree = messagepack.decoded(source, keep_data=keep_data)
    return unpacked(tree, source.name, max_numbers=source.limits.numbers)


def _read_json(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: ARG001, FBT001  as the others
    tree = json_format.decoded(source, keep_data=keep_data)
    return unpacked(tree, source.name, max_numbers=source.limits.numbers)


def _read_bincode(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: FBT001  as the others
    return bincode.decoded(source, like, keep_data=keep_data)


def _read_burnpack(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: ARG001, FBT001
    return burnpack.decoded(source, keep_data=keep_data)


def _read_safetensors(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: ARG001, FBT001
    return safetensors.decoded(source, keep_data=keep_data)


_mpk = partial(_named, messagepack.encoded)
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "named_mpk_gz",
            ".mpk.gz",
            "NamedMpkGzFileRecorder",
            _mpk,
            _read_messagepack,
            gzipped=True,
            memory_needed=messagepack_reader.memory_needed,
        ),
        Format(
            "named_mpk",
            ".mpk",
            "NamedMpkFileRecorder",
            _mpk,
            _read_messagepack,
            memory_needed=messagepack_reader.memory_needed,
        ),
        Format(
            "bin_gz",
            ".bin.gz",
            "BinGzFileRecorder",
            bincode.encoded,
            _read_bincode,
            gzipped=True,
            has_names=False,
            memory_needed=bincode_reader.memory_needed,
        ),
        Format(
            "bin",
            ".bin",
            "BinFileRecorder",
            bincode.encoded,
            _read_bincode,
            has_names=False,
            memory_needed=bincode_reader.memory_needed,
        ),
        Format(
            "json_gz",
            ".json.gz",
            "JsonGzFileRecorder",
            partial(_named, json_format.encoded),
            _read_json,
            gzipped=True,
            memory_needed=json_reader.memory_needed,
        ),
        Format(
            "pretty_json",
            ".json",
            "PrettyJsonFileRecorder",
            partial(_named, json_format.encoded_pretty),
            _read_json,
            memory_needed=json_reader.memory_needed,
        ),
        Format("burnpack", ".bpk", "BurnpackRecorder", burnpack.encoded, _read_burnpack),
        Format(
            "safetensors",
            ".safetensors",
            "SafetensorsRecorder",
            safetensors.encoded,
            _read_safetensors,
        ),
    )
}


def format_of(path: Path) -> Format:
    """The format that *path*'s suffix says. Raises `RecordError` for another suffix."""
    for form in FORMATS.values():
        if path.name.endswith(form.suffix):
            return form
    raise RecordError(
        f"{path}: a record's name ends in one of {', '.join(form.suffix for form in FORMATS.values())}"
    )


def write(
    record: Record,
    path: Path,
    form: Format,
    *,
    compression: int = 1,
    threads: int | None = None,
    limit: int | None = None,
) -> None:
    """Write *record* as the content of *path*; the same bytes each time, whatever the number of threads.

    Raises `RecordError` for a record that `read` with the same *limit* would refuse, and writes nothing.
    """
    pieces = ReadablePieces(record, form, limit=limit)
    with written_whole(path) as file:
        if form.gzipped:
            values = pieces.demand.values
            with GzipWriter(file, level=compression, threads=threads, values=values) as packed_file:
                for piece in pieces:
                    packed_file.write(piece)
        else:
            write_joined(pieces, file)


class ReadablePieces:
    """The bytes of *record* in *form*, which raise `RecordError` if a reader would refuse them."""

    def __init__(self, record: Record, form: Format, *, limit: int | None = None) -> None:
        self.demand = Demand.of(packed(record) if form.has_names and record.metadata else record.item)
        self._record = record
        self._form = form
        self._limits = Limits.of(0, limit)

    def __iter__(self) -> Pieces:
        """Yield the bytes in pieces."""
        demand, limits, needed = self.demand, self._limits, self._form.memory_needed
        if needed and self._form.has_names and demand.numbers > limits.numbers:
            raise RecordError(
                f"the record has {demand.numbers} numbers in lists, at most {limits.numbers} can be read "
                "back: record them as tensors"
            )
        size = 0
        for piece in self._form.encoded(self._record):
            size += len(piece)
            yield piece
        if needed and needed(demand, size) > limits.memory:
            raise RecordError(
                f"the record has {demand.values} small values, which take a reader more than the "
                f"{limits.memory} bytes of memory that a file of {size} bytes may ask for: record numbers as "
                "tensors, or give the recorder a limit"
            )


def read(
    path: Path,
    form: Format | None = None,
    *,
    like: Tree = None,
    keep_data: bool = True,
    limit: int | None = None,
) -> Record:
    """Return the record at *path*; every byte of the file is accounted for.

    Without *keep_data* its tensors have dtype and shape only. *limit* raises the default `Limits` to as many
    bytes of content. Raises `RecordError` for anything else than a record.
    """
    form = form or format_of(path)
    if not path.is_file():
        raise RecordError(f"there is no record {path}")
    source: Source = GzipSource(path, limit=limit) if form.gzipped else PlainSource.of_file(path, limit=limit)
    try:
        record = form.decoded(source, like, keep_data)
        source.finish()
    finally:
        source.close()
    return record


def write_joined(pieces: Iterable[bytes | memoryview], file: BinaryIO) -> None:
    """*pieces* to *file*, small ones together."""
    waiting = bytearray()
    for piece in pieces:
        if len(waiting) + len(piece) < WRITE_SIZE:
            waiting += piece
            continue
        file.write(waiting)
        file.write(piece)  # a long one as it is, without a copy
        waiting = bytearray()
    file.write(waiting)
