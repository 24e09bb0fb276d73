"""Every form a record takes in a file, by name and by suffix; no torch here."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from stages.contracts.errors import RecordError
from stages.contracts.files import written_whole
from stages.records.flat import burnpack
from stages.records.flat import safetensors_format as safetensors
from stages.records.gzipped.source import GzipSource
from stages.records.gzipped.writer import GzipWriter
from stages.records.named import json_format, messagepack
from stages.records.named.container import packed, unpacked
from stages.records.nameless import bincode
from stages.records.source import PlainSource, Source
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
    """Whether it can be read with no example."""


def _named(codec: Callable[[Tree], Pieces], record: Record) -> Pieces:
    return codec(packed(record))


def _read_messagepack(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: ARG001, FBT001
    return unpacked(messagepack.decoded(source, keep_data=keep_data), source.name)


def _read_json(source: Source, like: Tree, keep_data: bool) -> Record:  # noqa: ARG001, FBT001  as the others
    return unpacked(json_format.decoded(source, keep_data=keep_data), source.name)


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
        Format("named_mpk_gz", ".mpk.gz", "NamedMpkGzFileRecorder", _mpk, _read_messagepack, gzipped=True),
        Format("named_mpk", ".mpk", "NamedMpkFileRecorder", _mpk, _read_messagepack),
        Format(
            "bin_gz",
            ".bin.gz",
            "BinGzFileRecorder",
            bincode.encoded,
            _read_bincode,
            gzipped=True,
            has_names=False,
        ),
        Format("bin", ".bin", "BinFileRecorder", bincode.encoded, _read_bincode, has_names=False),
        Format(
            "json_gz",
            ".json.gz",
            "JsonGzFileRecorder",
            partial(_named, json_format.encoded),
            _read_json,
            gzipped=True,
        ),
        Format(
            "pretty_json",
            ".json",
            "PrettyJsonFileRecorder",
            partial(_named, json_format.encoded_pretty),
            _read_json,
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
    record: Record, path: Path, form: Format, *, compression: int = 1, threads: int | None = None
) -> None:
    """*record* as the whole content of *path*; the same bytes each time, whatever the number of threads."""
    with written_whole(path) as file:
        if form.gzipped:
            with GzipWriter(file, level=compression, threads=threads) as packed_file:
                for piece in form.encoded(record):
                    packed_file.write(piece)
        else:
            write_joined(form.encoded(record), file)


def read(path: Path, form: Format | None = None, *, like: Tree = None, keep_data: bool = True) -> Record:
    """The record at *path*, whole: every byte of the file is accounted for.

    Without *keep_data* its tensors have dtype and shape only. Raises `RecordError` for anything else.
    """
    form = form or format_of(path)
    if not path.is_file():
        raise RecordError(f"there is no record {path}")
    source: Source = GzipSource(path) if form.gzipped else PlainSource.of_file(path)
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
