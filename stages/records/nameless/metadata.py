"""What a file of bincode tells with no example at hand: its five texts, and whether its gzip is whole."""

from pathlib import Path

from stages.contracts.errors import RecordError
from stages.records.formats import Format
from stages.records.gzipped.source import GzipSource
from stages.records.source import PlainSource, Source
from stages.records.tree import Metadata

_MODULO = 1 << 32
"""Gzip declares the length of its content modulo this."""


def metadata_at(path: Path, form: Format, *, limit: int | None = None) -> Metadata:
    """Return the metadata of the bincode record at *path*; the rest is read for gzip's checksum alone.

    *limit* raises the default `Limits` to as many bytes of content.
    """
    if not path.is_file():
        raise RecordError(f"there is no record {path}")
    source: Source = GzipSource(path, limit=limit) if form.gzipped else PlainSource.of_file(path, limit=limit)
    try:
        metadata = form.decoded(source, (), False).metadata  # noqa: FBT003  the format's
        left = source.remaining()
        source.skip(left % _MODULO if form.gzipped else left)
        source.finish()
    finally:
        source.close()
    if metadata is None:
        raise RecordError(f"{path} has no metadata")
    return metadata
