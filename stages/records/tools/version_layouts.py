"""Translation of records between the layouts of Burn 0.22, in burnpack, and of 0.21, in all other formats.

What the other version cannot load is an error; nothing is guessed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.contracts.burn import FIELDS, ScheduleState
from stages.contracts.errors import RecordError
from stages.records import formats
from stages.records.burn_layouts import HISTORIES, from_022, to_021, to_022
from stages.records.dotted_names import param_ids
from stages.records.formats import Format
from stages.records.record_tree import (
    Map,
    ParameterState,
    RawTensor,
    Record,
    Tree,
    Variant,
    fields_of,
    iter_leaves,
)

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
