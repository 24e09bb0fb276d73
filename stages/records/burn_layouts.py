"""The two layouts of Burn's records of optimizers and schedules.

Up to 0.21, all formats have one tree: the state of a parameter is in two enums, and the number of a schedule
has no name. Burn 0.22 has burnpack only: numbers are scalars, each entry of an optimizer has the parameter's
id as a decimal number, the metadata has its path, and a schedule is in a list of groups.

Trees in memory have the layout of 0.21, with `ParameterState` and `ScheduleState` for the rest of 0.22.
"""

from stages.contracts.burn import FIELDS, ScheduleState
from stages.contracts.errors import RecordError
from stages.records.dotted_names import decode_param_id, encode_param_id, is_parameter
from stages.records.record_tree import (
    Map,
    ParameterState,
    RawTensor,
    Record,
    Signed,
    Tree,
    Variant,
    fields_of,
    map_leaves,
)

RANK = "__rank"
"""The entry of a parameter that has its number of dimensions."""
LENGTH = "len"
"""The entry of a list of L-BFGS that has its length."""
HISTORIES = ("history_s", "history_y")
"""The lists of L-BFGS."""


def to_021(item: Tree) -> Tree:
    """Return *item* in the layout of 0.21, which lacks paths and the states of other optimizers of groups."""
    if isinstance(item, ScheduleState):
        return _number_021(item)
    if not isinstance(item, Map):
        return item
    return Map(
        (key, state)
        for key, state in item.items()
        if not (isinstance(state, ParameterState) and state.is_of_group)
    )


def to_022(item: Tree) -> tuple[Tree, dict[str, str]]:
    """Return *item* in the layout of 0.22, and the texts of its metadata."""
    if isinstance(item, ScheduleState):
        return _fields_022(item if item.kind == "Groups" else ScheduleState("Groups", parts=(item,))), {}
    if isinstance(item, Map) and all(isinstance(state, ParameterState) for state in item.values()):
        numbers = {key: str(decode_param_id(key)) for key in item}
        entries = {numbers[key]: _entry(key, state.value) for key, state in item.items()}
        return entries, {numbers[key]: state.path for key, state in item.items()}
    if isinstance(item, dict) and item.keys() >= {*HISTORIES}:
        lists = {name: {**dict(fields_of(item[name])), LENGTH: len(item[name])} for name in HISTORIES}
        return {**item, **lists}, {}
    return item, {}


def from_022(record: Record, name: str) -> Tree:
    """Return the item of *record*, if it is that of an optimizer of 0.22, in the layout of trees in memory.

    Raises `RecordError`, which starts with *name*, if a list is incomplete.
    """
    item, paths = record.item, record.extra or {}
    if not isinstance(item, dict) or not item:
        return item
    if all(
        key.isdecimal() and isinstance(node, dict) and type(node.get(RANK)) is int
        for key, node in item.items()
    ):
        entries = {encode_param_id(int(key)): _state(node, paths.get(key, "")) for key, node in item.items()}
        return Map(entries)
    if all(isinstance(item.get(key), dict) and LENGTH in item[key] for key in HISTORIES):
        return {**item, **{key: _read_list(item[key], f"{name}, {key}") for key in HISTORIES}}
    return item


def _number_021(state: ScheduleState) -> Tree:
    """Return what 0.21 saves of *state*; a sequential one, which it lacks, is a map of its parts."""
    parts = [_number_021(part) for part in state.parts]
    if state.kind == "Groups":
        return parts[0]
    if state.kind == "Sequential":
        return {"step": state.number, **{str(index): part for index, part in enumerate(parts)}}
    if state.kind == "Composed":
        cases = [*FIELDS, "Constant"]
        kinds = [part.kind for part in state.parts]
        return {
            "schedulers": [
                Variant(kind, cases.index(kind), part) for kind, part in zip(kinds, parts, strict=True)
            ]
        }
    is_signed = state.kind in FIELDS and FIELDS[state.kind].is_signed
    return Signed(state.number) if is_signed and state.number is not None else state.number


def _fields_022(state: ScheduleState) -> dict[str, Tree]:
    """Return what 0.22 saves of *state*: its number by name, and its parts by index."""
    fields: dict[str, Tree] = {str(index): _fields_022(part) for index, part in enumerate(state.parts)}
    if state.number is None or state.kind not in FIELDS:
        return fields
    field = FIELDS[state.kind]
    number = Signed(state.number) if field.is_signed else state.number
    return {field.name: float(number) if field.is_float_since_022 else number, **fields}


def _entry(key: str, rank: Variant) -> dict[str, Tree]:
    """Return the entry of the parameter *key* with the state in *rank*; each tensor has the id."""

    def leaf(node: Tree) -> Tree:
        return {"id": key, "param": node} if isinstance(node, RawTensor) else node

    return {RANK: rank.index, **map_leaves(rank.value, leaf)}


def _state(node: dict[str, Tree], path: str) -> ParameterState:
    fields = {key: _without_ids(field) for key, field in node.items() if key != RANK}
    return ParameterState("V1", 0, Variant(f"Rank{node[RANK]}", node[RANK], fields), path)


def _without_ids(node: Tree) -> Tree:
    """Return *node* with each tensor in place of the tensor and its id."""
    if is_parameter(node):
        return node["param"]
    return {key: _without_ids(field) for key, field in node.items()} if isinstance(node, dict) else node


def _read_list(node: dict[str, Tree], where: str) -> list[Tree]:
    names = [str(index) for index in range(len(node) - 1)]
    if node.keys() != {LENGTH, *names} or node[LENGTH] != len(names):
        raise RecordError(f"{where} has the entries {', '.join(node)}, which are not those of a list")
    return [node[name] for name in names]
