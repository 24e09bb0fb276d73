"""The file formats of a record, by name and by suffix, and the functions that read and write them.

This module does not import torch.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stages.contracts.errors import RecordError
from stages.records import (
    bincode_reader,
    bincode_writer,
    burnpack_format,
    json_format,
    messagepack_format,
    safetensors_format,
)
from stages.records.byte_readers import ByteReader, rechunk
from stages.records.config import SUFFIXES
from stages.records.gzip_stream import GzipReader, write_compressed, write_stored
from stages.records.limits import Limits, ValueCounts
from stages.records.named_records import pack_record, unpack_record
from stages.records.record_tree import Layout, Metadata, Record, Tree
from stages.system.files import open_atomic

Pieces = Iterator[bytes | memoryview]
WRITE_SIZE = 1 << 20
"""Bytes up to which small pieces are joined for one write."""
_GZIP_MODULO = 1 << 32
"""A gzip file declares the length of its content modulo this number."""


@dataclass(frozen=True)
class Format:
    """The layout of a record in a file."""

    name: str
    """Name in params and in ``--recorder``."""
    type_name: str
    """Type name of Burn's recorder, for the metadata."""
    encoder: Callable[[Any], Pieces]
    """Encodes what `prepare` returns."""
    decoder: Callable[..., Record]
    """Decodes a record from a byte reader and, for bincode, an example tree."""
    has_names: bool = True
    """True if files can be read without an example."""
    is_tree: bool = False
    """True if the content of a file is one tree, that of `pack_record`."""
    memory_needed: Callable[[ValueCounts, int], int] | None = None
    """Memory that a reader needs for small values beyond what the content's length allows; None if the format
    bounds it by itself."""

    @property
    def suffix(self) -> str:
        """The end of the names of files."""
        return SUFFIXES[self.name]

    @property
    def gzipped(self) -> bool:
        """True for content that is compressed, or stored as if it were."""
        return self.suffix.endswith(".gz")

    @property
    def is_burnpack(self) -> bool:
        """True for Burn's format since 0.22, in which optimizers and schedules have another layout."""
        return self.name == "burnpack"

    @property
    def is_safetensors(self) -> bool:
        """True if files may have PyTorch's names and axes."""
        return self.name == "safetensors"

    def prepare(self, record: Record) -> Any:
        """Return *record*, or its tree if that is the content of a file."""
        return pack_record(record) if self.is_tree else record

    def encode(self, record: Record) -> Pieces:
        """Yield the bytes of *record* in pieces."""
        return self.encoder(self.prepare(record))

    def decode(self, source: ByteReader, like: Tree = None, *, keep_data: bool = True) -> Record:
        """Return the record in *source*; without *keep_data*, tensors have a dtype and a shape only."""
        example = () if self.has_names else (like,)
        return self.decoder(source, *example, keep_data=keep_data)


def _decode_named(decode: Callable[..., Tree], source: ByteReader, *, keep_data: bool) -> Record:
    tree = decode(source, keep_data=keep_data)
    return unpack_record(tree, source.name, max_numbers=source.limits.numbers)


_MESSAGEPACK = Format(
    "named_mpk",
    "NamedMpkFileRecorder",
    messagepack_format.encode,
    partial(_decode_named, messagepack_format.decode),
    is_tree=True,
    memory_needed=messagepack_format.memory_needed,
)
_BINCODE = Format(
    "bin",
    "BinFileRecorder",
    bincode_writer.encode,
    bincode_reader.decode,
    has_names=False,
    memory_needed=bincode_reader.memory_needed,
)
_JSON = Format(
    "pretty_json",
    "PrettyJsonFileRecorder",
    json_format.encode_pretty,
    partial(_decode_named, json_format.decode),
    is_tree=True,
    memory_needed=json_format.memory_needed,
)
_ALL = (
    replace(_MESSAGEPACK, name="named_mpk_gz", type_name="NamedMpkGzFileRecorder"),
    _MESSAGEPACK,
    replace(_BINCODE, name="bin_gz", type_name="BinGzFileRecorder"),
    _BINCODE,
    replace(
        _JSON,
        name="json_gz",
        type_name="JsonGzFileRecorder",
        encoder=json_format.encode,
    ),
    _JSON,
    Format("burnpack", "BurnpackRecorder", burnpack_format.encode, burnpack_format.decode),
    Format("safetensors", "SafetensorsRecorder", safetensors_format.encode, safetensors_format.decode),
)
FORMATS: dict[str, Format] = {form.name: form for form in _ALL}


def find_format(path: Path) -> Format:
    """Return the format for the suffix of *path*. Raises `RecordError` for an unknown suffix."""
    for form in FORMATS.values():
        if path.name.endswith(form.suffix):
            return form
    raise RecordError(f"{path}: unknown suffix; use one of {', '.join(SUFFIXES.values())}")


def layout_of(record: Record, form: Format) -> Layout | None:
    """Return the layout of *record*, which was read in *form*; None if its file does not state it."""
    return record.layout if form.is_safetensors else "burn"


def write(
    record: Record,
    path: Path,
    form: Format,
    *,
    compression: int = 1,
    threads: int | None = None,
    limit: int | None = None,
) -> None:
    """Write *record* to *path* atomically; the bytes do not depend on the number of threads.

    Raises `RecordError`, and writes no file, if `read` with the same *limit* would refuse the record.
    """
    pieces = CheckedPieces(record, form, limit=limit)
    with open_atomic(path) as file:
        if not form.gzipped:
            for block in rechunk(pieces, WRITE_SIZE):
                file.write(block)
        elif compression:
            write_compressed(pieces, file, threads=threads, values=pieces.counts.values)
        else:
            write_stored(pieces, file)


class CheckedPieces:
    """The bytes of *record* in *form*; iterating raises `RecordError` if a reader would refuse them."""

    def __init__(self, record: Record, form: Format, *, limit: int | None = None) -> None:
        self._content = form.prepare(record)
        self.counts = ValueCounts.of(self._content if form.is_tree else record.item)
        self._form = form
        self._limits = Limits.for_size(0, limit)

    def __iter__(self) -> Pieces:
        """Yield the bytes in pieces."""
        counts, limits, needed = self.counts, self._limits, self._form.memory_needed
        if self._form.is_tree and counts.numbers > limits.numbers:
            raise RecordError(
                f"the record has {counts.numbers} numbers in lists, but at most {limits.numbers} can be read "
                "back; record them as tensors"
            )
        size = 0
        for piece in self._form.encoder(self._content):
            size += len(piece)
            yield piece
        if needed and needed(counts, size) > limits.memory:
            raise RecordError(
                f"the record has {counts.values} small values, which need more memory than the "
                f"{limits.memory} bytes allowed when reading a file of {size} bytes; record numbers as "
                "tensors, or set the recorder's limit"
            )


def read(
    path: Path,
    form: Format | None = None,
    *,
    like: Tree = None,
    keep_data: bool = True,
    limit: int | None = None,
) -> Record:
    """Return the record at *path*, after checking every byte of the file.

    Without *keep_data*, the tensors have a dtype and a shape only. *limit* raises the default `Limits` to as
    many bytes of content. Raises `RecordError` if the file is missing or is not a valid record.
    """
    form = form or find_format(path)
    with closing(_open(path, form, limit)) as source:
        record = form.decode(source, like, keep_data=keep_data)
        source.finish()
    return record


def read_metadata(path: Path, form: Format, *, limit: int | None = None) -> Metadata:
    """Return the metadata of the bincode record at *path*, without an example of its item.

    The rest of the file is read only to verify gzip's checksum. *limit* raises the default `Limits` to as
    many bytes of content. Raises `RecordError` if the file is missing or corrupt.
    """
    with closing(_open(path, form, limit)) as source:
        metadata = form.decode(source, (), keep_data=False).metadata
        rest = source.remaining()
        source.skip(rest % _GZIP_MODULO if form.gzipped else rest)
        source.finish()
    if metadata is None:
        raise RecordError(f"{path} has no metadata; it is not a bincode record")
    return metadata


def _open(path: Path, form: Format, limit: int | None) -> ByteReader:
    if not path.is_file():
        raise RecordError(f"no record at {path}")
    reader = GzipReader if form.gzipped else ByteReader
    return reader.of_file(path, limit=limit)
