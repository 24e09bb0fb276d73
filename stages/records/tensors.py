"""Conversion between torch tensors and the tensors of a record, over shared memory if possible."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stages.contracts.errors import RecordError
from stages.records.pickle_program import DTYPES
from stages.records.record_tree import RawTensor, Tree, map_leaves, strip_type_hints
from stages.records.torch_layouts.skeleton import Slot

TORCH_DTYPES: dict[str, torch.dtype] = {name: vars(torch)[text] for text, name in DTYPES.items()}
TORCH_DTYPES["Flex32"] = torch.float32
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items() if name != "Flex32"}
BLOCK_SIZE = 1 << 20
"""Bytes that are copied at a time if the memory layout of a tensor differs from that of the record.

A processor's cache holds two such blocks, which makes transposing a matrix five times faster.
"""


@dataclass(frozen=True, eq=False)
class TensorPieces:
    """The bytes of the tensor that *make* computes from *sources* whenever they are requested."""

    sources: tuple[Tensor, ...]
    make: Callable[..., Tensor] = Tensor.detach

    def __call__(self) -> Iterable[memoryview]:
        """Return the bytes in order."""
        return _pieces(self.make(*self.sources).detach())


def to_raw(tensor: Tensor) -> RawTensor:
    """Return *tensor* as a record's tensor, whose bytes are read on request, not now.

    Raises `RecordError` if no record can hold it: complex, float8, quantized, sparse, or without data.
    """
    check_recordable(tensor)
    return RawTensor(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), TensorPieces((tensor.detach(),)))


def lazy_tensor(
    make: Callable[..., Tensor], sources: tuple[Tensor, ...], shape: tuple[int, ...]
) -> RawTensor:
    """Return the tensor of *shape* that *make* computes from *sources*, of their dtype, when it is read."""
    return RawTensor(DTYPE_NAMES[sources[0].dtype], shape, TensorPieces(sources, make))


def from_raw(raw: RawTensor) -> Tensor:
    """Return *raw* as a torch tensor, over the same memory if it is writable."""
    dtype = TORCH_DTYPES[raw.dtype]
    if not raw.numel:
        return torch.empty(raw.shape, dtype=dtype, device="cpu")
    flat = _join_pieces(raw)
    if dtype == torch.bool and int(flat.max()) > 1:
        raise RecordError(f"a Bool tensor contains {int(flat.max())}; expected only 0 and 1")
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()  # an aligned copy
    return flat.view(dtype).reshape(raw.shape)


def to_raw_tree(node: Tree) -> Tree:
    """Return *node* as a named format would load it, with raw tensors in place of torch tensors."""
    return map_leaves(strip_type_hints(node), lambda leaf: to_raw(leaf) if isinstance(leaf, Tensor) else leaf)


def replace_tensors(node: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """Return *node* with *change* applied to each torch tensor from which its bytes are read.

    The containers of the result are new.
    """

    def leaf(node: Tree) -> Tree:
        if isinstance(node, Tensor):
            return change(node)
        if isinstance(node, RawTensor) and isinstance(node.pieces, TensorPieces):
            sources = tuple(change(source) for source in node.pieces.sources)
            return replace(node, pieces=replace(node.pieces, sources=sources))
        return node

    return map_leaves(node, leaf)


def read_tensors_with(node: Tree, prepare: Callable[[Tensor], Callable[[], Tensor]]) -> Tree:
    """Return *node* with the bytes of what a reader returns for each torch tensor in it.

    *prepare* is called at once for each tensor, in order, and returns its reader. The reader is called
    whenever the bytes are requested, and returns a tensor of the same shape and dtype.
    """

    def leaf(node: Tree) -> Tree:
        raw = to_raw(node) if isinstance(node, Tensor) else node
        if not isinstance(raw, RawTensor) or not isinstance(raw.pieces, TensorPieces):
            return raw
        make, readers = raw.pieces.make, [prepare(source) for source in raw.pieces.sources]
        return replace(raw, pieces=TensorPieces((), lambda: make(*(read() for read in readers))))

    return map_leaves(node, leaf)


def check_recordable(tensor: Tensor, what: str = "a tensor") -> None:
    """Raise `RecordError` if no record can hold *tensor*; *what* names it in the message."""
    if tensor.dtype not in DTYPE_NAMES:
        hint = "with torch.view_as_real" if tensor.is_complex() else "to one of them"
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_NAMES)
        raise RecordError(
            f"{what} of {tensor.dtype} cannot be recorded; supported are {dtypes}: convert it {hint}"
        )
    if tensor.layout != torch.strided:
        raise RecordError(f"{what} of layout {tensor.layout} cannot be recorded; convert it with to_dense()")
    if tensor.is_meta:
        raise RecordError(
            f"{what} on the meta device has no data to record; allocate it with to_empty() and initialize it"
        )


def view_slot(slot: Slot, tensor: Tensor) -> Tensor:
    """Return the view of *tensor* that *slot* describes: a range of rows, transposed if Burn's layout is."""
    shown = tensor if slot.start is None else tensor[slot.start : slot.stop]
    return shown.t() if slot.transposed else shown


def join_slots(parts: Sequence[tuple[Slot, RawTensor]]) -> Tensor:
    """Return the torch tensor that the slots in *parts* describe; the first of equal slots takes effect."""
    unique: dict[int, tuple[Slot, RawTensor]] = {}
    for slot, raw in parts:
        unique.setdefault(slot.start or 0, (slot, raw))
    shown = [
        from_raw(raw).t() if slot.transposed else from_raw(raw) for _, (slot, raw) in sorted(unique.items())
    ]
    return shown[0] if len(shown) == 1 else torch.cat(shown)


def _pieces(tensor: Tensor) -> Iterable[memoryview]:
    if tensor.is_cpu and tensor.is_contiguous():
        return (_view_bytes(tensor),)
    return _iter_blocks(tensor if tensor.dim() else tensor.reshape(1))


def _iter_blocks(tensor: Tensor) -> Iterator[memoryview]:
    """Yield *tensor* in blocks of rows, so that a transposed or device tensor is never copied at once."""
    if not tensor.numel():
        return
    rows = max(1, BLOCK_SIZE // max(1, tensor[0].numel() * tensor.element_size()))
    for start in range(0, len(tensor), rows):
        block = tensor[start : start + rows]
        if block.dim() == 2 and block.stride(0) == 1:
            block = block.t().contiguous().t()  # torch transposes a contiguous matrix faster
        yield _view_bytes(block.contiguous().cpu())


def _join_pieces(raw: RawTensor) -> Tensor:
    """Return the bytes of *raw* as one tensor, without a copy if they are one writable piece."""
    pieces = list(raw.pieces())
    if len(pieces) == 1 and not pieces[0].readonly:
        return torch.frombuffer(pieces[0], dtype=torch.uint8)
    return torch.frombuffer(bytearray().join(pieces), dtype=torch.uint8)


def _view_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.resolve_neg().reshape(-1)
    if flat.numel() == 1:
        flat = flat.as_strided((1,), (1,))  # torch keeps any stride of a single element
    return flat.view(torch.uint8).numpy().data
