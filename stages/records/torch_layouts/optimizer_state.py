"""The state of a torch optimizer's parameters, and its counterpart in Burn's optimizers.

A *form* is Burn's state with the name of PyTorch's entry in the place of each value; its ``step`` is a
number.

An optimizer of another class has the form of its attribute ``burn_form``.

Burn's velocity of Muon is a sum of gradients (its default, without dampening), and PyTorch's buffer is their
moving average, so the velocity is the buffer divided by 1 - momentum. Its record does not restore the buffer
bit for bit, so the supplement holds the complete state.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.record_tree import RawTensor, Some, Tree, Variant
from stages.records.tensors import DTYPE_NAMES, join_slots, lazy_tensor, to_raw, view_slot
from stages.records.torch_layouts.skeleton import Slot, slots

STEP = "step"
AVERAGE = "avg"
"""The divisor of the gradient in Burn's RMSProp, which PyTorch computes at each step instead."""
BUFFER = "momentum_buffer"
VELOCITY = "velocity"
"""The velocity of Burn's Muon, from PyTorch's `BUFFER`."""
DERIVED = {AVERAGE: ("square_avg", "grad_avg"), VELOCITY: (BUFFER,)}
"""Values that PyTorch lacks, with its entries from which they are computed; the first is required."""
ADAM = {
    "momentum": {
        "time": STEP,
        "moment_1": "exp_avg",
        "moment_2": "exp_avg_sq",
        "max_moment_2": Some("max_exp_avg_sq"),
    }
}
SGD = {"momentum": Some({"velocity": "momentum_buffer"})}
RMS_PROP = {
    "square_avg": {"square_avg": "square_avg"},
    "centered": {"grad_avg": Some("grad_avg"), "avg": AVERAGE},
    "momentum": Some({"buf": "momentum_buffer"}),
}
MUON = {"momentum": {"velocity": VELOCITY}}
ROWS, COLUMNS, VARIANCE = "row_var", "col_var", "variance"
ADAFACTOR = {"time": STEP, "second_moment": ROWS, "column_second_moment": Some(COLUMNS)}
"""Means of squared gradients over each of the last two axes; a vector has a `VARIANCE` in place of `ROWS`."""
ADA_GRAD = {"lr_decay": {"time": STEP, "sum": "sum"}}
FORMS: tuple[tuple[type[torch.optim.Optimizer], Tree], ...] = (
    (torch.optim.Adam, ADAM),
    (torch.optim.AdamW, ADAM),
    (torch.optim.SGD, SGD),
    (torch.optim.RMSprop, RMS_PROP),
    (torch.optim.Adagrad, ADA_GRAD),
    (torch.optim.Adafactor, ADAFACTOR),
)
EXACT_DTYPES = {torch.float32, torch.float16, torch.bfloat16}
"""Dtypes that a record in full precision restores bit for bit."""


def form_of(optimizer: torch.optim.Optimizer) -> Tree:
    """Return Burn's form of *optimizer*'s state; None if Burn has no such optimizer, or if it has several."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return None
    forms = (form for kind, form in FORMS if isinstance(optimizer, kind))
    return getattr(optimizer, "burn_form", None) or next(forms, None)


def form_of_group(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Tree:
    """Return Burn's form of the state of the parameters in *group*; None if Burn has no such optimizer."""
    is_muon = "ns_coefficients" in group and "momentum" in group
    return MUON if is_muon else form_of(part_of(optimizer, group))


def part_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Return the optimizer of the parameters of *group*: one of several if *optimizer* joins them."""
    match optimizer:
        case object(part_of=find):
            optimizer = find(group)
    return optimizer


def count_steps(states: Mapping[Tensor, Mapping[str, Any]]) -> dict[Tensor, int]:
    """Return the number of steps of each parameter in *states* that a record can hold.

    The counters on a device are read in one transfer, which waits for the device.
    """
    counters = {
        key: state[STEP] for key, state in states.items() if isinstance(key, Tensor) and STEP in state
    }
    numbers = {key: counter for key, counter in counters.items() if isinstance(counter, int | float)}
    by_kind: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for parameter, counter in counters.items():
        if isinstance(counter, Tensor) and counter.numel() == 1 and not counter.is_complex():
            by_kind[counter.device, counter.dtype].append(parameter)
    for parameters in by_kind.values():
        values = torch.stack([counters[parameter].detach().reshape(()) for parameter in parameters]).tolist()
        numbers.update(zip(parameters, values, strict=True))
    return {key: int(count) for key, count in numbers.items() if count >= 0 and float(count).is_integer()}


def record_state(
    form: Tree,
    state: Mapping[str, Any],
    member: tuple[Mapping[str, Any], Tensor],
    slot: Slot,
    *,
    steps: int | None,
) -> Variant | None:
    """Return Burn's record of the part of a *state* at *slot*, after *steps* from `count_steps`.

    *member* is the parameter after the options of its group. None if Burn needs more than *state* has.
    """
    group, parameter = member
    if form is ADAFACTOR:
        entries = _moments(state, slot)
    else:
        entries = {key: entry for key, entry in state.items() if _is_like(entry, parameter)}
    shape = tuple(view_slot(slot, parameter).shape)

    def leaf(key: str) -> Tree:
        if key == STEP:
            return steps
        if key not in DERIVED:
            return to_raw(view_slot(slot, entries[key]))
        sources = tuple(entries[name] for name in DERIVED[key] if name in entries)
        scale = 1 - group.get("momentum", 0)
        compute = _average if key == AVERAGE else partial(_velocity, scale)
        return lazy_tensor(lambda *tensors: view_slot(slot, compute(*tensors)), sources, shape)

    names = {*entries} if steps is None else {*entries, STEP}
    names |= {key for key, sources in DERIVED.items() if sources[0] in entries}
    record = _build_record(form, leaf, names)
    if record is None or not _leaves(form) & names:
        return None
    return Variant(f"Rank{len(shape)}", len(shape), record)


def exact_entries(
    form: Tree,
    state: Mapping[str, Any],
    parameter: Tensor,
    *,
    step: tuple[torch.dtype, torch.device] | None,
) -> set[str]:
    """Return the names of the entries of *state* that a record in full precision restores bit for bit.

    *step* is the dtype and the device of a new counter of the optimizer, because the record stores the number
    only; None if it stores none.
    """
    names = set()
    if parameter.dtype in EXACT_DTYPES:
        entries = {key: state[key] for key in keys(form) if _is_like(state.get(key), parameter)}
        names = {key for key, entry in entries.items() if entry.dtype == parameter.dtype}
    counter = state.get(STEP)
    if isinstance(counter, Tensor) and STEP in keys(form) and counter.dim() == 0:
        names |= {STEP} if (counter.dtype, counter.device) == step else set()
    return names


def read_state(form: Tree, nodes: list[tuple[Slot, Tree]], parameter: Tensor, source: str) -> dict[str, Any]:
    """Return PyTorch's entries for *parameter* from Burn's states *nodes* of its slots; ``step`` is a number.

    Raises:
        RecordError: If a state has another structure or shape. The message starts with *source*.
    """
    entries: dict[str, list[tuple[Slot, RawTensor]]] = {}
    loaded: dict[str, Any] = {}
    for slot, node in nodes:
        for key, value in _read(form, _state(node, slot, source), source).items():
            if key == STEP:
                loaded[STEP] = value
            elif form is ADAFACTOR and parameter.dim() > 1:
                loaded |= _read_moment(key, value, slot, parameter, source)
            else:
                name = VARIANCE if form is ADAFACTOR else key
                entries.setdefault(name, []).append((slot, _check_shape(value, slot, parameter, source)))
    for key, parts in entries.items():
        if len(parts) == len(nodes):
            loaded[key] = torch.empty_like(parameter).copy_(join_slots(parts))
    return loaded


def has_joint_moments(form: Tree, parameter: Tensor, slots_of_parameter: Iterable[Slot]) -> bool:
    """Return whether Burn has the moments of parts of a matrix, from which those of all do not follow."""
    return (
        form is ADAFACTOR
        and parameter.dim() > 1
        and any(slot.start is not None for slot in slots_of_parameter)
    )


def _moments(state: Mapping[str, Any], slot: Slot) -> dict[str, Tensor]:
    """Return the entries of a *state* of Adafactor by the names in its form; none for a part of a matrix."""
    if VARIANCE in state:
        return {ROWS: state[VARIANCE]}
    if ROWS not in state or slot.start is not None:
        return {}
    names = (COLUMNS, ROWS) if slot.transposed else (ROWS, COLUMNS)
    return dict(zip(names, (state[ROWS], state[COLUMNS]), strict=True))


def _read_moment(key: str, raw: RawTensor, slot: Slot, parameter: Tensor, source: str) -> dict[str, Tensor]:
    """Return PyTorch's entry for a matrix from *raw*, the value of *key* in the form of Adafactor."""
    name = {ROWS: COLUMNS, COLUMNS: ROWS}[key] if slot.transposed else key
    shape = list(parameter.shape)
    shape[-1 if name == ROWS else -2] = 1
    _check_shape(raw, slot, torch.empty(shape, device="meta"), source)
    return {name: join_slots([(slot, raw)]).to(parameter.dtype)}


def keys(form: Tree) -> set[str]:
    """Return the names of PyTorch's entries in *form*."""
    return _leaves(form) - DERIVED.keys()


def _leaves(form: Tree) -> set[str]:
    if isinstance(form, dict):
        return {key for inner in form.values() for key in _leaves(inner)}
    return _leaves(form.value) if isinstance(form, Some) else {form}


def _build_record(form: Tree, leaf: Callable[[str], Tree], names: set[str]) -> Tree:
    if isinstance(form, str):
        return leaf(form) if form in names else None
    if isinstance(form, Some):
        inner = _build_record(form.value, leaf, names)
        return None if inner is None else Some(inner)
    fields = {key: _build_record(inner, leaf, names) for key, inner in form.items()}
    lacking = any(fields[key] is None and not isinstance(inner, Some) for key, inner in form.items())
    return None if lacking else fields


def _read(form: Tree, node: Tree, source: str) -> dict[str, Any]:
    if isinstance(form, Some):
        return {} if node is None else _read(form.value, node, source)
    if isinstance(form, dict):
        if not isinstance(node, dict):
            raise RecordError(f"{source}: found {_describe(node)}, expected {', '.join(form)}")
        return {
            name: value
            for key, inner in form.items()
            for name, value in _read(inner, node.get(key), f"{source}.{key}").items()
        }
    if form == AVERAGE:
        return {}
    if form == STEP and isinstance(node, int) and not isinstance(node, bool) and node >= 0:
        return {STEP: node}
    if form == STEP or not isinstance(node, RawTensor):
        expected = "count" if form == STEP else "tensor"
        raise RecordError(
            f"{source}: found {_describe(node)}, expected a {expected}. Check that the record is that of an "
            "optimizer of the same class"
        )
    return {form: node}


def _state(node: Tree, slot: Slot, source: str) -> Tree:
    """Return the content of ``{"V1": {"Rank2": …}}``."""
    for expected in ("V1", "Rank"):
        if not isinstance(node, dict) or len(node) != 1 or not next(iter(node)).startswith(expected):
            raise RecordError(f"{source}, {slot.id}: found {_describe(node)}, expected {expected}")
        node = next(iter(node.values()))
    return node


def _check_shape(tensor: RawTensor, slot: Slot, parameter: Tensor, source: str) -> RawTensor:
    expected = tuple(view_slot(slot, parameter).shape)
    if tensor.shape != expected:
        raise RecordError(f"{source}, {slot.id}: found shape {list(tensor.shape)}, expected {list(expected)}")
    return tensor


def _is_like(entry: Any, parameter: Tensor) -> bool:
    return isinstance(entry, Tensor) and entry.shape == parameter.shape and entry.dtype in DTYPE_NAMES


def _average(square: Tensor, mean: Tensor | None = None) -> Tensor:
    return square if mean is None else square - mean * mean


def _velocity(scale: float, buffer: Tensor) -> Tensor:
    return buffer / scale


def _describe(node: Tree) -> str:
    return f"fields {', '.join(map(str, node))}" if isinstance(node, dict) else type(node).__name__


Options = dict[str, Any]
"""The options of a parameter group: learning rate, betas and so on."""


def slots_by_parameter(module: nn.Module, skeleton: Tree) -> dict[int, list[Slot]]:
    """Return the slots of *skeleton* for each parameter of *module*, by the ``id`` of its tensor."""
    by_name: dict[str, list[Slot]] = {}
    for _, slot in slots(skeleton):
        by_name.setdefault(slot.name, []).append(slot)
    places: dict[int, list[Slot]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).extend(by_name.get(name, ()))
    return places


def members(
    optimizer: torch.optim.Optimizer, groups: list[Options] | None = None
) -> Iterator[tuple[Options, Tensor]]:
    """Yield each parameter with the options of its group, from *groups* if that is not None."""
    for place, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield (groups[place] if groups else group), parameter


def options_of(group: Mapping[str, Any]) -> Options:
    """Return the entries of *group* other than its parameters."""
    return {key: value for key, value in group.items() if key != "params"}


def step_kind(group: Mapping[str, Any], parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    """Return the dtype and the device of the counter of a new torch optimizer."""
    on_device = bool(group.get("capturable") or group.get("fused"))
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    device = parameter.device if on_device else torch.device("cpu")
    return torch.float64 if wide else torch.float32, device


def new_step(value: float, group: Mapping[str, Any], parameter: Tensor) -> Tensor:
    """Return the counter of a new torch optimizer, with *value*."""
    dtype, device = step_kind(group, parameter)
    return torch.full((), float(value), dtype=dtype, device=device)  # no copy to the device


def to_entry(entry: Any, key: str, group: Mapping[str, Any], parameter: Tensor) -> Any:
    """Return a copy of *entry* with the device, dtype and strides with which an optimizer keeps it."""
    if key == STEP and isinstance(entry, int):
        return new_step(entry, group, parameter)
    if not isinstance(entry, Tensor):
        return entry
    device = step_kind(group, parameter)[1] if key == STEP else parameter.device
    if entry.shape == parameter.shape:  # with the parameter's strides, as torch creates it
        return torch.empty_like(parameter, dtype=entry.dtype, requires_grad=False).copy_(entry)
    return entry.detach().to(device, copy=True)


def assign(optimizer: torch.optim.Optimizer, states: list[dict[str, Any]]) -> None:
    """Set the state of each parameter of *optimizer* to one of *states*."""
    for (_, parameter), state in zip(members(optimizer), states, strict=True):
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = state
