"""Between torch's tensors and those of a record, without copying where the bytes can be shared."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from stages.contracts.errors import RecordError
from stages.records.record_tree import RawTensor, Some, Tree, Variant
from stages.records.torch_modules.skeleton import Slot

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "Flex32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "Bool": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items() if name != "Flex32"}
BLOCK_SIZE = 1 << 20
"""Bytes that are copied at once where a tensor does not lie in memory as the record wants it.

A processor's cache holds two of these, which makes turning a matrix round five times faster.
"""


def to_raw(tensor: Tensor) -> RawTensor:
    """*tensor* as a record has it. Its bytes are taken when they are asked for, not now.

    Raises `RecordError` for what no record holds: complex, float8, quantised, sparse, or without data.
    """
    check_recordable(tensor)
    tensor = tensor.detach()
    return RawTensor(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), lambda: _pieces(tensor))


def from_raw(raw: RawTensor) -> Tensor:
    """The tensor of *raw*, over the same bytes where they may be written to."""
    dtype = TORCH_DTYPES[raw.dtype]
    if not raw.numel:
        return torch.empty(raw.shape, dtype=dtype)
    flat = _joined(raw)
    if dtype == torch.bool and int(flat.max()) > 1:
        raise RecordError(f"a tensor of Bool holds a {int(flat.max())}, where only 0 and 1 may be")
    return _aligned(flat, dtype).reshape(raw.shape)


def to_raw_tree(node: Tree) -> Tree:
    """*node* as a named format would give it back, with raw tensors in the place of torch's."""
    if isinstance(node, dict):
        return {key: to_raw_tree(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [to_raw_tree(value) for value in node]
    if isinstance(node, Some | Variant):
        return to_raw_tree(node.value) if isinstance(node, Some) else {node.name: to_raw_tree(node.value)}
    return to_raw(node) if isinstance(node, Tensor) else node


def check_recordable(tensor: Tensor, what: str = "a tensor") -> None:
    """Raises `RecordError` where no record can hold *tensor*, which *what* names."""
    if tensor.dtype not in DTYPE_NAMES:
        hint = "with torch.view_as_real" if tensor.is_complex() else "to one of them"
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_NAMES)
        raise RecordError(f"{what} of {tensor.dtype} cannot be recorded, only of {known}: convert it {hint}")
    if tensor.layout != torch.strided:
        raise RecordError(f"{what} of layout {tensor.layout} cannot be recorded: make it dense, to_dense()")
    if tensor.is_meta:
        raise RecordError(f"{what} on the meta device has no data to record: give it some, to_empty()")


def view_slot(slot: Slot, tensor: Tensor) -> Tensor:
    """What *slot* shows of the *tensor* that it names; a view."""
    shown = tensor if slot.start is None else tensor[slot.start : slot.stop]
    return shown.t() if slot.transposed else shown


def join_slots(parts: Sequence[tuple[Slot, RawTensor]]) -> Tensor:
    """The tensor that *parts* show, as PyTorch has it; of parts that show the same, the first counts."""
    unique: dict[int, tuple[Slot, RawTensor]] = {}
    for slot, raw in parts:
        unique.setdefault(slot.start or 0, (slot, raw))
    shown = [
        from_raw(raw).t() if slot.transposed else from_raw(raw) for _, (slot, raw) in sorted(unique.items())
    ]
    return shown[0] if len(shown) == 1 else torch.cat(shown)


def _pieces(tensor: Tensor) -> Iterable[memoryview]:
    if tensor.is_cpu and tensor.is_contiguous():
        return (_bytes(tensor),)
    return _blocks(tensor if tensor.dim() else tensor.reshape(1))


def _blocks(tensor: Tensor) -> Iterator[memoryview]:
    """*tensor* by blocks of rows, so that what is transposed or on a device is never copied in whole."""
    if not tensor.numel():
        return
    rows = max(1, BLOCK_SIZE // max(1, tensor[0].numel() * tensor.element_size()))
    for start in range(0, len(tensor), rows):
        block = tensor[start : start + rows]
        if block.dim() == 2 and block.stride(0) == 1:
            block = block.t().contiguous().t()  # torch is quick to turn a matrix that lies in one piece
        yield _bytes(block.contiguous().cpu())


def _joined(raw: RawTensor) -> Tensor:
    """The bytes of *raw*: the file's own where they may be written to, copied otherwise."""
    pieces = list(raw.pieces())
    if len(pieces) == 1 and not pieces[0].readonly:
        return torch.frombuffer(pieces[0], dtype=torch.uint8)
    flat = torch.empty(raw.nbytes, dtype=torch.uint8)
    into, offset = flat.numpy().data, 0
    for piece in pieces:
        into[offset : offset + piece.nbytes] = piece
        offset += piece.nbytes
    return flat


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.resolve_neg().reshape(-1).view(torch.uint8).numpy().data


def _aligned(flat: Tensor, dtype: torch.dtype) -> Tensor:
    """*flat* seen as *dtype*; copied where its bytes do not begin where elements may."""
    return (flat.clone() if flat.data_ptr() % dtype.itemsize else flat).view(dtype)
