"""Recorders: how a tree of state becomes one file, and a file a tree again. Burn's `Recorder`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from stages.records import formats
from stages.records.burn_metadata import build_metadata
from stages.records.byte_readers import PlainReader
from stages.records.config import RecorderConfig
from stages.records.dotted_names import unflatten
from stages.records.formats import FORMATS, Format
from stages.records.precision import DoublePrecision, FullPrecision, HalfPrecision, Precision
from stages.records.record_tree import Map, RawTensor, Record, Some, Tree, Variant
from stages.records.tensors import from_raw, to_raw


class Recorder(Protocol):
    """Turns a tree into a file and back."""

    precision: Precision

    @property
    def suffix(self) -> str:
        """What the names of its files end in."""

    @property
    def has_names(self) -> bool:
        """Whether it can load with no example."""

    def record(self, item: Tree, path: Path) -> Path:
        """Write *item* to *path* with the suffix added; the name of the file."""

    def load(self, path: Path, like: Tree = None, *, limit: int | None = None) -> Tree:
        """Return the tree that was recorded at *path*, with or without the suffix.

        A format without names (bincode) needs *like*, a tree of the same structure. *limit* is the most
        bytes of content to read, if that is more than 64 MiB and 100 times the file's size.
        """


class FileRecorder:
    """One of the formats with one of the precisions. The same tree always gives the same bytes.

    Precision is how floats and integers are written; any recorder reads any precision. A recorder reads
    whatever it wrote; *limit* raises what it accepts of small values, and of content that compresses well.
    """

    form: Format

    def __init__(
        self,
        precision: Precision = FullPrecision,
        *,
        compression: int = 1,
        threads: int | None = None,
        limit: int | None = None,
    ) -> None:
        """*compression* is 1, or 0 to store (gzipped formats); *threads* changes no byte."""
        self.precision = precision
        self._compression = compression
        self._threads = threads
        self._limit = limit

    @property
    def suffix(self) -> str:
        """What the names of its files end in."""
        return self.form.suffix

    @property
    def has_names(self) -> bool:
        """Whether it can load with no example."""
        return self.form.has_names

    def record(self, item: Tree, path: Path) -> Path:
        """Write *item* to *path* with the suffix added, whole or not at all; the name of the file."""
        target = self.named(path)
        metadata = build_metadata(self.form.type_name, self.precision)
        formats.write(
            Record(_written(item, self.precision), metadata),
            target,
            self.form,
            compression=self._compression,
            threads=self._threads,
            limit=self._limit,
        )
        return target

    def load(self, path: Path, like: Tree = None, *, limit: int | None = None) -> Tree:
        """Return the tree at *path*, with or without the suffix. Raises `RecordError` for anything else."""
        limit = max(filter(None, (limit, self._limit)), default=None)
        return to_torch_tree(formats.read(self.named(path), self.form, like=like, limit=limit).item)

    def named(self, path: Path) -> Path:
        """*path* with the suffix."""
        return path if path.name.endswith(self.suffix) else path.with_name(path.name + self.suffix)


class NamedMpkFileRecorder(FileRecorder):
    """MessagePack with names: ``.mpk``."""

    form = FORMATS["named_mpk"]


class NamedMpkGzFileRecorder(FileRecorder):
    """MessagePack with names, gzipped: ``.mpk.gz``. Burn's default."""

    form = FORMATS["named_mpk_gz"]


class BinFileRecorder(FileRecorder):
    """Bincode, which has no names: ``.bin``."""

    form = FORMATS["bin"]


class BinGzFileRecorder(FileRecorder):
    """Bincode, gzipped: ``.bin.gz``."""

    form = FORMATS["bin_gz"]


class PrettyJsonFileRecorder(FileRecorder):
    """JSON to look at: ``.json``."""

    form = FORMATS["pretty_json"]


class JsonGzFileRecorder(FileRecorder):
    """JSON, gzipped: ``.json.gz``."""

    form = FORMATS["json_gz"]


class BurnpackRecorder(FileRecorder):
    """Burn's own format since 0.19: ``.bpk``."""

    form = FORMATS["burnpack"]


class SafetensorsRecorder(FileRecorder):
    """Safetensors, with the rest of the tree in its header: ``.safetensors``."""

    form = FORMATS["safetensors"]


class BytesRecorder:
    """In memory. Burn's `NamedMpkBytesRecorder` and `BinBytesRecorder`."""

    def __init__(self, form: Format, precision: Precision = FullPrecision) -> None:
        self.precision = precision
        self._form = form

    def record(self, item: Tree) -> bytes:
        """Return *item* as bytes. Raises `RecordError` for an item that `load` would refuse."""
        metadata = build_metadata(self._form.type_name, self.precision)
        return b"".join(formats.CheckedPieces(Record(_written(item, self.precision), metadata), self._form))

    def load(self, data: bytes, like: Tree = None, *, limit: int | None = None) -> Tree:
        """Return the tree in *data*. Raises `RecordError` for anything else."""
        source = PlainReader.of_bytes(data, limit=limit)
        record = self._form.decode(source, like, True)  # noqa: FBT003  the format's
        source.finish()
        return to_torch_tree(record.item)


def NamedMpkBytesRecorder(precision: Precision = FullPrecision) -> BytesRecorder:  # noqa: N802  Burn's name
    """MessagePack with names, in memory."""
    return BytesRecorder(FORMATS["named_mpk"], precision)


def BinBytesRecorder(precision: Precision = FullPrecision) -> BytesRecorder:  # noqa: N802  Burn's name
    """Bincode, in memory."""
    return BytesRecorder(FORMATS["bin"], precision)


RECORDERS: dict[str, type[FileRecorder]] = {kind.form.name: kind for kind in FileRecorder.__subclasses__()}
PRECISIONS = {"full": FullPrecision, "half": HalfPrecision, "double": DoublePrecision}


def DefaultRecorder() -> FileRecorder:  # noqa: N802  Burn's name
    """Burn's: ``.mpk.gz`` in full precision."""
    return NamedMpkGzFileRecorder(FullPrecision)


def CompactRecorder() -> FileRecorder:  # noqa: N802  Burn's name
    """Burn's: ``.mpk.gz`` with floats of 16 bits."""
    return NamedMpkGzFileRecorder(HalfPrecision)


def build_recorder(config: RecorderConfig) -> FileRecorder:
    """Return the recorder that *config* selects."""
    return RECORDERS[config.format_name](PRECISIONS[config.precision_name], compression=config.compression)


def read_item(path: Path, like: Tree = None, *, limit: int | None = None) -> Tree:
    """Return the item of the record at *path*, in the format of its suffix, with torch's tensors."""
    return to_torch_tree(formats.read(path, like=like, limit=limit).item)


def write_state_dict(state: Mapping[str, Tensor], path: Path) -> None:
    """*state* as a safetensors file under its own names, for ``safetensors.torch.load_file``."""
    item = unflatten({name: to_raw(each) for name, each in state.items()}, "the state_dict")
    formats.write(Record(item, None, {"format": "pt"}), path, FORMATS["safetensors"])


def to_torch_tree(item: Tree) -> Tree:
    """*item* with torch's tensors in the place of raw ones, over the same memory."""
    return _mapped(item, lambda leaf: from_raw(leaf) if isinstance(leaf, RawTensor) else leaf)


def _written(item: Tree, precision: Precision) -> Tree:
    def leaf(node: Tree) -> Tree:
        node = to_raw(node) if isinstance(node, Tensor) else node
        return precision.convert(node) if isinstance(node, RawTensor) else node

    return _mapped(item, leaf)


def _mapped(node: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """*node* with its leaves changed; what bincode needs to know stays."""
    if isinstance(node, Some):
        return Some(_mapped(node.value, change))
    if isinstance(node, Variant):
        return Variant(node.name, node.index, _mapped(node.value, change))
    if isinstance(node, dict):
        kind = Map if isinstance(node, Map) else dict
        return kind((key, _mapped(value, change)) for key, value in node.items())
    if isinstance(node, list | tuple):
        return type(node)(_mapped(value, change) for value in node)
    return change(node)
