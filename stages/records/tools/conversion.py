"""Conversion of a record to another format or precision, and between the layouts of Burn 0.22 and 0.21.

Burn 0.22 has burnpack, and 0.21 all other formats. What the other version cannot load is an error; nothing is
guessed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.contracts.burn import FIELDS, ScheduleState
from stages.contracts.errors import ParamsError, RecordError
from stages.records import formats
from stages.records.bincode_reader import parse_version
from stages.records.burn_layouts import HISTORIES, from_022, to_021, to_022
from stages.records.dotted_names import param_ids
from stages.records.formats import Format
from stages.records.named_records import BURN_VERSION, build_metadata
from stages.records.precision import DoublePrecision, HalfPrecision, OriginalPrecision, Precision
from stages.records.record_tree import (
    FLOATS,
    ITEM_SIZES,
    Layout,
    Map,
    Metadata,
    ParameterState,
    RawTensor,
    Record,
    Signed,
    Some,
    Tree,
    Variant,
    convert_tensors,
    fields_of,
    iter_leaves,
)

MATRIX = 2
"""The number of dimensions of a tensor whose axes may be in another order."""
FIRST_BYTES_VERSION = (0, 14)
"""The first version of Burn that writes a tensor as bytes, shape and dtype."""


def convert_record(
    record: Record, form: Format, precision: Precision | None = None, layout: Layout | None = "burn"
) -> Record:
    """Return *record*, which has *layout*, with the metadata of *form* and its tensors in *precision*.

    If *precision* is None, the tensors are unchanged, and the metadata states the previous precision, or that
    of the floats if the record has no metadata. The version of Burn is kept if it is 0.14 or later, which is
    when tensors got their present layout.
    """
    item = record.item if precision is None else convert_tensors(record.item, precision.convert)
    if layout != "burn":
        return Record(item, None, record.extra)
    metadata = build_metadata(form.type_name, precision or _settings(record))
    return Record(item, replace(metadata, version=_version(record.metadata)), record.extra)


def choose_layout(record: Record, before: Format, after: Format, wanted: Layout | None) -> Layout | None:
    """Return the layout in which *record*, read in the format *before*, is written in the format *after*.

    Only a safetensors file can have PyTorch's. Raises `ParamsError` if *wanted* is PyTorch's for another
    format, or if it is None and a matrix of Burn could be transposed in the eyes of a reader.
    """
    if not after.is_safetensors:
        if wanted == "torch":
            raise ParamsError(f"{after.suffix} files have Burn's axes. Leave --layout torch out")
        return "burn"
    if wanted or before.is_safetensors:
        return wanted or record.layout
    if matrix := next((name for name, tensor in _tensors(record) if len(tensor.shape) == MATRIX), None):
        raise ParamsError(
            f"{matrix} is a matrix, and Burn's Linear has the axes [in, out], PyTorch's [out, in]. Set "
            "--layout burn to keep Burn's names and axes, or --layout torch and --learner to write PyTorch's"
        )
    return "burn"


def find_lossy_tensors(record: Record, precision: Precision | None) -> list[str]:
    """Return the names of the tensors of *record* whose floats lose bits in *precision*."""
    target = precision.float_dtype if precision else None
    if target is None:
        return []
    return [name for name, leaf in _tensors(record) if leaf.dtype in FLOATS and _loses(leaf.dtype, target)]


def _tensors(record: Record) -> Iterator[tuple[str, RawTensor]]:
    """Yield the name and the value of each tensor of *record*."""
    for path, leaf in iter_leaves(record.item):
        if isinstance(leaf, RawTensor):
            yield path.removesuffix(".param"), leaf


def add_types(node: Tree, like: Tree, path: str = "") -> Tree:
    """Return *node* with the markers that bincode needs, taken from the example *like*.

    *node* was read from a format with names, which does not store them. A missing value is nil, as in Burn.

    Raises:
        RecordError: If *node* does not have the structure of *like*.
    """
    if isinstance(like, Some):
        return None if node is None else Some(add_types(node, like.value, path))
    if isinstance(like, Variant):
        if not isinstance(node, dict) or list(node) != [like.name]:
            raise _misfit(node, f"a map of {like.name!r} alone", path)
        return Variant(like.name, like.index, add_types(node[like.name], like.value, f"{path}.{like.name}"))
    if isinstance(like, dict):
        return _add_types_to_map(node, like, path)
    if isinstance(like, list | tuple):
        return _add_types_to_list(node, like, path)
    if like is None:
        return None  # a constant: readers ignore its value
    if isinstance(like, Signed) and isinstance(node, int):
        return Signed(node)
    if isinstance(like, float) and isinstance(node, int | float):
        return float(node)
    if not isinstance(node, type(like)) or isinstance(node, bool) != isinstance(like, bool):
        raise _misfit(node, "an integer" if isinstance(like, Signed) else f"a {type(like).__name__}", path)
    return node


def _add_types_to_map(node: Tree, like: dict[str, Tree], path: str) -> Tree:
    if not isinstance(node, dict):
        raise _misfit(node, f"a map of {', '.join(like) or 'no fields'}", path)
    if isinstance(like, Map):
        first = next(iter(like.values()), None)
        return Map(
            {key: add_types(value, like.get(key, first), f"{path}.{key}") for key, value in node.items()}
        )
    if unknown := node.keys() - like.keys():
        raise RecordError(
            f"{path.lstrip('.') or 'the record'} has {', '.join(sorted(unknown))}, which the learner lacks"
        )
    return {key: add_types(node.get(key), value, f"{path}.{key}") for key, value in like.items()}


def _add_types_to_list(node: Tree, like: list[Tree] | tuple[Tree, ...], path: str) -> Tree:
    if not isinstance(node, list | tuple) or (isinstance(like, tuple) and len(node) != len(like)):
        raise _misfit(node, f"a list of {len(like)}", path)
    examples = like if len(like) == len(node) else [like[0] if like else None] * len(node)
    return type(like)(
        add_types(one, example, f"{path}.{i}")
        for i, (one, example) in enumerate(zip(node, examples, strict=True))
    )


def _settings(record: Record) -> Precision:
    """Return the precision in the metadata of *record*, or that of most of its floats."""
    by_name = {one.settings: one for one in (OriginalPrecision, HalfPrecision, DoublePrecision)}
    if isinstance(record.metadata, Metadata) and record.metadata.settings in by_name:
        return by_name[record.metadata.settings]
    sizes: Counter[str] = Counter()
    for _, tensor in _tensors(record):
        if tensor.dtype in FLOATS:
            sizes[tensor.dtype] += tensor.numel
    others = sizes.total() - sizes["F16"] - sizes["F64"]
    if sizes["F16"] > max(sizes["F64"], others):
        return HalfPrecision
    return DoublePrecision if sizes["F64"] > others else OriginalPrecision


def _version(metadata: Metadata | None) -> str:
    try:
        return (
            metadata.version if metadata and parse_version(metadata) >= FIRST_BYTES_VERSION else BURN_VERSION
        )
    except RecordError:
        return BURN_VERSION


def _loses(dtype: str, target: str) -> bool:
    return ITEM_SIZES[target] < ITEM_SIZES[dtype] or {dtype, target} == {"BF16", "F16"}


def _misfit(node: Tree, expected: str, path: str) -> RecordError:
    name = path.lstrip(".") or "the record"
    return RecordError(f"{name} must be {expected}, as in the learner; found the type {type(node).__name__}")


IN_COMPOSED = FIELDS.keys() - {"Step", "Sequential"}
"""The parts that a composed schedule of 0.21 can have."""
TRANSFORMS = {"input_transform", "hidden_transform"}
"""The fields of a gate of Burn's RNNs."""
ACTIVATION = "hidden_activation"


def translate_version(record: Record, source: Path, before: Format, after: Format) -> Record:
    """Return *record*, read from *source* in the format *before*, in the layout that Burn has in *after*.

    A model's record is unchanged. Raises `RecordError` if it cannot be translated.
    """
    if before.is_burnpack == after.is_burnpack:
        return record
    if before.is_burnpack:
        item = to_021(_read_022(record, source))
        if lacks_activations(item):
            raise RecordError(
                f"{source} has an RNN, whose activation burnpack does not store and Burn 0.21 needs. Set "
                "--learner to a directory with the learner.json of the model"
            )
        return replace(record, item=item, extra=None if isinstance(item, Map) else record.extra)
    item, texts = to_022(_read_021(record.item, source))
    return replace(record, item=item, extra={**(record.extra or {}), **texts} or None)


def lacks_activations(item: Tree) -> bool:
    """Return whether *item* has an RNN without its activations, which Burn up to 0.21 needs."""
    parts = [part for _, part in fields_of(item)] if isinstance(item, dict | list) else []
    has_gate = any(isinstance(part, dict) and part.keys() >= TRANSFORMS for part in parts)
    return (has_gate and ACTIVATION not in item) or any(map(lacks_activations, parts))


def _read_022(record: Record, source: Path) -> Tree:
    item = from_022(record, str(source))
    if isinstance(item, Map):
        _check_one_optimizer(item, source)
        return item
    if not item and source.name.startswith("scheduler"):
        return None  # a constant rate has no number
    numbers = [leaf for _, leaf in iter_leaves(item)]
    if not isinstance(item, list) or any(isinstance(leaf, RawTensor) for leaf in numbers):
        return item
    if len(item) > 1:
        raise RecordError(f"{source} has the schedules of {len(item)} groups, and Burn 0.21 has no groups")
    return _schedule_of(item[0], source)


def _check_one_optimizer(item: Map, source: Path) -> None:
    """Raise `RecordError` unless the states of *item* are those of one optimizer of Burn 0.21."""
    states = [state.value.value for state in item.values()]
    if any(isinstance(field, RawTensor) for fields in states for field in fields.values()):
        raise RecordError(f"{source} is the state of an optimizer that Burn 0.21 lacks")
    kinds = {tuple(sorted(path for path, _ in iter_leaves(fields))) for fields in states if fields}
    if len(kinds) > 1:
        raise RecordError(f"{source} has the states of several optimizers, and Burn 0.21 has no groups")


def _schedule_of(fields: Tree, source: Path) -> ScheduleState:
    """Return the state with the *fields* of 0.22, if 0.21 has such a schedule."""
    if isinstance(fields, list):
        fields = {str(index): part for index, part in enumerate(fields)}
    names = {kind: field.name for kind, field in FIELDS.items() if kind != "Sequential"}
    for kind, name in names.items():
        if fields.keys() == {name} and isinstance(fields[name], int | float):
            is_integer = kind != "Exponential"
            return ScheduleState(kind, int(fields[name]) if is_integer else float(fields[name]))
    parts = [_schedule_of(part, source) for part in fields.values() if isinstance(part, dict)]
    in_order = [*fields] == [str(index) for index in range(len(fields))]
    if not parts or len(parts) != len(fields) or not in_order or {p.kind for p in parts} - IN_COMPOSED:
        raise RecordError(
            f"{source} is the state of a schedule that Burn 0.21 lacks, with {', '.join(fields)}"
        )
    return ScheduleState("Composed", None, tuple(parts))


def _read_021(item: Tree, source: Path) -> Tree:
    if isinstance(item, int | float) or (isinstance(item, dict) and item.keys() == {"schedulers"}):
        raise RecordError(
            f"{source} does not state the kind of its schedule, which Burn 0.22 stores. Set --learner to a "
            "directory with the learner.json of the run"
        )
    is_optimizer = isinstance(item, dict) and item and all(map(_is_state, item.values()))
    if not is_optimizer or item.keys() >= {*HISTORIES}:
        return item
    paths = _paths(source)
    if unknown := [key for key in item if key not in paths]:
        raise RecordError(
            f"{source} has the parameter {unknown[0]}, and Burn 0.22 stores its path. Put the model's record "
            "of the same checkpoint beside it"
        )
    return Map((key, _with_path(state, paths[key])) for key, state in item.items())


def _is_state(node: Any) -> bool:
    return isinstance(node, dict) and node.keys() == {"V1"} and len(node["V1"]) == 1


def _with_path(state: Tree, path: str) -> ParameterState:
    [(rank, fields)] = state["V1"].items()
    return ParameterState("V1", 0, Variant(rank, int(rank.removeprefix("Rank")), fields), path)


def _paths(source: Path) -> dict[str, str]:
    """Return the path of each parameter by its id, from the model's record beside *source*."""
    path = source.with_name(source.name.replace("optim", "model", 1))
    if path == source or not path.is_file():
        return {}
    ids = param_ids(formats.read(path, keep_data=False).item)
    return {key: name for name, key in ids.items()}
