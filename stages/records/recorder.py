"""Recorders, which write a tree of state to one file and load it again. Burn's `Recorder`.

`save_file` and `load_file` are Burn's functions of these names, for the parameters of a module.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records import formats
from stages.records.burn_layouts import from_022, to_021, to_022
from stages.records.byte_readers import ByteReader
from stages.records.config import RecorderConfig
from stages.records.dotted_names import flatten, unflatten
from stages.records.formats import FORMATS, Format
from stages.records.named_records import build_metadata
from stages.records.precision import PRECISIONS, FullPrecision, HalfPrecision, Precision
from stages.records.record_tree import (
    TORCH_FORMAT,
    Layout,
    OfTorch,
    RawTensor,
    Record,
    TorchList,
    TorchMap,
    Tree,
    convert_tensors,
    map_leaves,
)
from stages.records.safetensors_format import is_index, read_index
from stages.records.tensors import from_raw, to_raw
from stages.records.torch_files import is_torch_file, read_state_dict
from stages.records.torch_layouts.module_record import fields_unlike_burn, record_of
from stages.records.torch_layouts.state_dict import load_into


class Recorder(Protocol):
    """Writes a tree to a file and loads it."""

    precision: Precision

    @property
    def suffix(self) -> str:
        """Return the suffix of its files."""

    @property
    def has_names(self) -> bool:
        """Return True if files can be loaded without an example."""

    def record(self, item: Tree, path: Path) -> Path:
        """Write *item* to *path* with the suffix added and return the file's path."""

    def load(self, path: Path, like: Tree = None, *, limit: int | None = None) -> Tree:
        """Return the tree that was recorded at *path*, with or without the suffix.

        A format without names (bincode) needs *like*, a tree of the same structure. *limit* is the largest
        number of content bytes to read; the default is 64 MiB or 100 times the file's size, if that is more.
        """


class FileRecorder:
    """A recorder with a file format and a precision. Equal trees are written as equal bytes.

    The precision applies to writing floats and integers; any recorder reads any precision. A recorder reads
    every file that it wrote; *limit* raises its limits on small values and on content that compresses well.
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
        """Create a recorder.

        *compression* is 1, or 0 to store (gzipped formats only). *threads* does not affect the bytes.
        """
        self.precision = precision
        self._compression = compression
        self._threads = threads
        self._limit = limit

    @property
    def suffix(self) -> str:
        """Return the suffix of its files."""
        return self.form.suffix

    @property
    def has_names(self) -> bool:
        """Return True if files can be loaded without an example."""
        return self.form.has_names

    def record(self, item: Tree, path: Path) -> Path:
        """Write *item* atomically to *path* with the suffix added and return the file's path.

        Raises `RecordError` if *item* was read from a file with PyTorch's names and axes.
        """
        if isinstance(item, OfTorch):
            raise RecordError(
                f"{path.name}: the tensors have PyTorch's names and axes, and a record has Burn's. Load them "
                "into the model with load_into, and record record_of(model)"
            )
        target = self.with_suffix(path)
        formats.write(
            _build_record(item, self.form, self.precision),
            target,
            self.form,
            compression=self._compression,
            threads=self._threads,
            limit=self._limit,
        )
        return target

    def load(self, path: Path, like: Tree = None, *, limit: int | None = None) -> Tree:
        """Return the tree at *path*, with or without the suffix.

        Raises `RecordError` if the file is missing or is not a valid record.
        """
        limit = max(filter(None, (limit, self._limit)), default=None)
        return _read(self.with_suffix(path), self.form, like, limit)

    def with_suffix(self, path: Path) -> Path:
        """Return *path* with the suffix."""
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
    """Indented JSON: ``.json``."""

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
    """A recorder in memory. Burn's `NamedMpkBytesRecorder` and `BinBytesRecorder`."""

    def __init__(self, form: Format, precision: Precision = FullPrecision) -> None:
        self.precision = precision
        self._form = form

    def record(self, item: Tree) -> bytes:
        """Return *item* as bytes. Raises `RecordError` if `load` would refuse them."""
        return b"".join(formats.CheckedPieces(_build_record(item, self._form, self.precision), self._form))

    def load(self, data: bytes, like: Tree = None, *, limit: int | None = None) -> Tree:
        """Return the tree in *data*. Raises `RecordError` if it is not a valid record."""
        source = ByteReader.of_bytes(data, limit=limit)
        record = self._form.decode(source, like)
        source.finish()
        return to_torch_tree(record.item)


def NamedMpkBytesRecorder(precision: Precision = FullPrecision) -> BytesRecorder:  # noqa: N802  Burn's name
    """Return a recorder of MessagePack with names, in memory."""
    return BytesRecorder(FORMATS["named_mpk"], precision)


def BinBytesRecorder(precision: Precision = FullPrecision) -> BytesRecorder:  # noqa: N802  Burn's name
    """Return a recorder of bincode, in memory."""
    return BytesRecorder(FORMATS["bin"], precision)


RECORDERS: dict[str, type[FileRecorder]] = {kind.form.name: kind for kind in FileRecorder.__subclasses__()}


def DefaultRecorder() -> FileRecorder:  # noqa: N802  Burn's name
    """Return Burn's default recorder: ``.mpk.gz`` in full precision."""
    return NamedMpkGzFileRecorder(FullPrecision)


def CompactRecorder() -> FileRecorder:  # noqa: N802  Burn's name
    """Return Burn's compact recorder: ``.mpk.gz`` with floats of 16 bits."""
    return NamedMpkGzFileRecorder(HalfPrecision)


def build_recorder(config: RecorderConfig) -> FileRecorder:
    """Return the recorder that *config* selects."""
    return RECORDERS[config.format_name](PRECISIONS[config.precision_name], compression=config.compression)


def read_item(
    path: str | Path, like: Tree = None, *, limit: int | None = None, key: str | None = None
) -> Tree:
    """Return the item of the record at *path*, in the format of its suffix, with torch tensors.

    A ``.pt`` or ``.pth`` file is read without executing code; *key* names the entry with its state dict. The
    item of a ``.safetensors.index.json`` file has the tensors of all its shards.
    """
    path = Path(path)
    if is_torch_file(path):
        return _of_torch(to_torch_tree(read_state_dict(path, key=key)))
    if key is not None:
        raise RecordError(f"{path}: key is {key!r}, but only .pt and .pth files have entries. Remove key")
    if is_index(path):
        return _of_torch(to_torch_tree(_read_shards(path, limit)))
    return _read(path, formats.find_format(path), like, limit)


def _read(path: Path, form: Format, like: Tree, limit: int | None) -> Tree:
    """Return the item at *path* with torch tensors, marked if its file states PyTorch's names and axes."""
    record = formats.read(path, form, like=like, limit=limit)
    item = to_torch_tree(from_022(record, str(path)) if form.is_burnpack else record.item)
    return _of_torch(item) if formats.layout_of(record, form) == "torch" else item


def _of_torch(item: Tree) -> Tree:
    return TorchList(item) if isinstance(item, list) else TorchMap(item)


def _read_shards(index: Path, limit: int | None) -> Tree:
    """Return the tree of the tensors in the shards of *index*."""
    leaves: dict[str, Tree] = {}
    for path, names in read_index(index).items():
        leaves_of_shard = dict(flatten(formats.read(path, FORMATS["safetensors"], limit=limit).item))
        if lacking := [name for name in names if name not in leaves_of_shard]:
            raise RecordError(f"{path} lacks {lacking[0]!r}, which {index.name} expects there")
        leaves.update({name: leaves_of_shard[name] for name in names})
    return unflatten(leaves, str(index))


def write_state_dict(state: Mapping[str, Tensor], path: Path) -> None:
    """Write *state* as a safetensors file under its own names, for ``safetensors.torch.load_file``."""
    formats.write(state_record(state), path, FORMATS["safetensors"])


def state_record(state: Mapping[str, Tensor]) -> Record:
    """Return the record of a safetensors file with *state* under its own names."""
    item = unflatten({name: to_raw(tensor) for name, tensor in state.items()}, "the state_dict")
    return Record(item, None, {"format": TORCH_FORMAT})


def to_torch_tree(item: Tree) -> Tree:
    """Return *item* with torch tensors in place of raw tensors, over the same memory."""
    return convert_tensors(item, from_raw)


def _build_record(item: Tree, form: Format, precision: Precision) -> Record:
    """Return the record of *item* with the layout that Burn has in *form*."""
    item, metadata = _convert_tensors(item, precision), build_metadata(form.type_name, precision)
    if not form.is_burnpack:
        return Record(to_021(item), metadata)
    item, texts = to_022(item)
    return Record(item, metadata, texts)


def _convert_tensors(item: Tree, precision: Precision) -> Tree:
    def leaf(node: Tree) -> Tree:
        node = to_raw(node) if isinstance(node, Tensor) else node
        return precision.convert(node) if isinstance(node, RawTensor) else node

    return map_leaves(item, leaf)


log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)


def save_file(model: nn.Module, path: str | Path, recorder: Recorder) -> Path:
    """Write the record of *model* to *path* with the recorder's extension and return the file's path.

    As in Burn, the extension replaces that of *path*, unless it is the recorder's already, and missing parent
    directories are created. The file is replaced atomically when it is complete.

    >>> import tempfile
    >>> from stages.records import DefaultRecorder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(nn.Linear(4, 2), f"{folder}/model", DefaultRecorder()).name
    'model.mpk.gz'

    Raises:
        RecordError: If the model has a tensor that a record cannot hold.
    """
    for field in fields_unlike_burn(model):
        log.warning("Burn cannot load %s", field)
    return recorder.record(record_of(model), _with_extension(Path(path), recorder.suffix))


def load_file(model: Model, path: str | Path, recorder: Recorder, *, limit: int | None = None) -> Model:
    """Load the record at *path*, with the recorder's extension, into *model* and return *model*.

    Tensors are converted to the dtypes and devices of *model*, so a file of any precision can be loaded.
    *limit* raises the number of content bytes that a file may have if it compresses more than 100 times.

    Raises:
        RecordError: If the file is missing, or if it is not the record of such a model; *model* is then
            unchanged.
    """
    target = _with_extension(Path(path), recorder.suffix)
    item = recorder.load(target, record_of(model), limit=limit)
    layout: Layout = "torch" if isinstance(item, OfTorch) else "burn"
    load_into(model, item, source=str(target), layout=layout)
    return model


def _with_extension(path: Path, suffix: str) -> Path:
    """Return *path* with its extension replaced by *suffix*."""
    return path if path.name.endswith(suffix) else path.with_name(path.stem + suffix)
