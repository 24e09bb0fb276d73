"""Recorders: how a tree of state becomes one file.

The container is the one of Burn 0.12 to 0.21 (``metadata``, ``item``, ``_b``); what stands under
``item`` is named as in PyTorch.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isal import igzip, isal_zlib
from torch import Tensor

from stages.contracts.errors import ParamsError, RecordError, closest
from stages.contracts.files import written_whole
from stages.records.messagepack import decoded, encoded

TYPE_NAME = "burn_core::record::file::NamedMpkGzFileRecorder<burn_core::record::settings::{}>"

Tree = Any
"""Dicts with text keys, lists, numbers, text, bytes, None and tensors, nested."""


@dataclass(frozen=True)
class Precision:
    """How many bits a floating point number keeps in a file. Burn's `PrecisionSettings`."""

    settings: str
    float_type: str
    int_type: str
    convert: Callable[[Tensor], Tensor]


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _halved(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


FullPrecision = Precision("FullPrecisionSettings", "f32", "i32", _as_it_is)
"""Every tensor as it is: what is loaded equals what was recorded, bit for bit."""

HalfPrecision = Precision("HalfPrecisionSettings", "half::binary16::f16", "i16", _halved)
"""Floating point as float16: half the size, for inference."""


class Recorder(Protocol):
    """Turns a tree into a file and back."""

    suffix: str
    precision: Precision

    def record(self, item: Tree, path: Path) -> Path:
        """Write *item* to *path* with the suffix added; the name of the file."""

    def load(self, path: Path) -> Tree:
        """The tree that was recorded at *path*, with or without the suffix."""


class NamedMpkGzFileRecorder:
    """MessagePack with names, gzipped. The same tree is the same bytes: no time, no name in the header."""

    suffix = ".mpk.gz"

    def __init__(self, precision: Precision = FullPrecision) -> None:
        self.precision = precision

    def record(self, item: Tree, path: Path) -> Path:
        """Write *item* to *path* with the suffix added, whole or not at all; the name of the file."""
        target = self._named(path)
        container = {
            "metadata": {
                "float": self.precision.float_type,
                "int": self.precision.int_type,
                "format": TYPE_NAME.format(self.precision.settings),
                "version": "0.21.0",
                "settings": self.precision.settings,
            },
            "item": _converted(item, self.precision.convert),
            "_b": [],
        }
        with (
            written_whole(target) as file,
            igzip.IGzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        ):
            for piece in encoded(container):
                packed.write(piece)
        return target

    def load(self, path: Path) -> Tree:
        """The tree at *path*, with or without the suffix. Raises `RecordError` for anything else."""
        source = self._named(path)
        if not source.is_file():
            raise RecordError(f"there is no record {source}")
        container = decoded(_unzipped(source), str(source))
        if not isinstance(container, dict) or not {"metadata", "item"} <= container.keys():
            raise RecordError(f"{source} holds MessagePack, but no record (no 'metadata' and 'item')")
        return container["item"]

    def _named(self, path: Path) -> Path:
        if path.name.endswith(self.suffix):
            return path
        return path.with_name(path.name + self.suffix)


def DefaultRecorder() -> NamedMpkGzFileRecorder:  # noqa: N802  Burn's name
    """Burn's: everything is kept."""
    return NamedMpkGzFileRecorder(FullPrecision)


def CompactRecorder() -> NamedMpkGzFileRecorder:  # noqa: N802  Burn's name
    """Burn's: floats of 16 bits."""
    return NamedMpkGzFileRecorder(HalfPrecision)


RECORDERS: dict[str, Callable[[], Recorder]] = {
    "default": DefaultRecorder,
    "compact": CompactRecorder,
}


def named(name: str) -> Recorder:
    """The recorder that params call *name*: Burn's ``default`` (full precision) or ``compact`` (half)."""
    if name not in RECORDERS:
        raise ParamsError(
            f"no recorder is called {name!r}: {', '.join(RECORDERS)}.{closest(name, RECORDERS)}"
        )
    return RECORDERS[name]()


def _converted(node: Tree, convert: Callable[[Tensor], Tensor]) -> Tree:
    if isinstance(node, Tensor):
        return convert(node)
    if isinstance(node, dict):
        return {key: _converted(value, convert) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_converted(value, convert) for value in node]
    return node


def _unzipped(path: Path) -> bytes:
    """The content of a file that is one gzip member and nothing else."""
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        raise RecordError(f"{path} is no gzip file: it begins {content[:2]!r}")
    stream = isal_zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        data: bytes = stream.decompress(content)
    except isal_zlib.error as error:  # type: ignore[misc]  # isal's stub does not say that it is one
        raise RecordError(f"{path} is altered: {error}") from error
    if not stream.eof:
        raise RecordError(f"{path} is cut short: its gzip stream does not end")
    if stream.unused_data:
        raise RecordError(
            f"{path} goes on for {len(stream.unused_data)} bytes after its gzip stream has ended"
        )
    return data
