"""What Burn's optimizers keep of one parameter, and where PyTorch's keep the same.

A form is Burn's state with the name of PyTorch's entry in each place; ``step`` is a number there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import RecordError
from stages.records.record_tree import RawTensor, Some, Tree, Variant
from stages.records.tensors import DTYPE_NAMES, join_slots, to_raw, view_slot
from stages.records.torch_modules.skeleton import Slot

STEP = "step"
AVERAGE = "avg"
"""Of Burn's RMSProp: what the gradient is divided by, which PyTorch works out again each step."""
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
ADA_GRAD = {"lr_decay": {"time": STEP, "sum": "sum"}}
FORMS: tuple[tuple[type[torch.optim.Optimizer], Tree], ...] = (
    (torch.optim.Adam, ADAM),
    (torch.optim.AdamW, ADAM),
    (torch.optim.SGD, SGD),
    (torch.optim.RMSprop, RMS_PROP),
    (torch.optim.Adagrad, ADA_GRAD),
)
EXACT_DTYPES = {torch.float32, torch.float16, torch.bfloat16}
"""Types that full precision keeps bit for bit."""


def form_of(optimizer: torch.optim.Optimizer) -> Tree:
    """Burn's form of *optimizer*'s state, None where Burn has no such optimizer."""
    plain = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
    return next((form for kind, form in FORMS if plain and isinstance(optimizer, kind)), None)


def record_state(form: Tree, state: Mapping[str, Any], parameter: Tensor, slot: Slot) -> Tree:
    """Burn's record of what *slot* shows of *parameter*'s *state*; None where that lacks what Burn needs."""
    shown = {key: entry for key, entry in state.items() if _is_like(entry, parameter)}
    shape = view_slot(slot, parameter).shape

    def leaf(key: str) -> Tree:
        if key == STEP:
            return int(state[STEP])
        if key == AVERAGE:
            return lazy_tensor(
                lambda: view_slot(slot, _average(shown)), shown["square_avg"].dtype, tuple(shape)
            )
        return to_raw(view_slot(slot, shown[key]))

    names = {*shown, STEP} if STEP in state and _is_step_count(state[STEP]) else {*shown}
    names |= {AVERAGE} if "square_avg" in shown else set()
    made = _build_record(form, leaf, names)
    if made is None or not any(key in shown for key in keys(form)):
        return None
    return Variant("V1", 0, Variant(f"Rank{len(shape)}", len(shape), made))


def exact_entries(
    form: Tree, state: Mapping[str, Any], parameter: Tensor, *, step: Tensor | None
) -> set[str]:
    """The entries of *state* that a record in full precision brings back bit for bit.

    *step* is what the optimizer would count with, as the record has the number only.
    """
    names = {
        key for key in keys(form) if _is_like(state.get(key), parameter) and state[key].dtype in EXACT_DTYPES
    }
    names = {key for key in names if state[key].dtype == parameter.dtype}
    counter = state.get(STEP)
    if step is not None and isinstance(counter, Tensor) and STEP in keys(form) and _is_step_count(counter):
        same = (counter.dtype, counter.device, counter.shape) == (step.dtype, step.device, step.shape)
        names |= {STEP} if same else set()
    return names


def read_state(form: Tree, nodes: list[tuple[Slot, Tree]], parameter: Tensor, where: str) -> dict[str, Any]:
    """PyTorch's entries for *parameter* from Burn's states *nodes* of its slots; ``step`` is a number.

    Raises `RecordError`, which *where* begins, for states of another form or shape.
    """
    entries: dict[str, list[tuple[Slot, RawTensor]]] = {}
    made: dict[str, Any] = {}
    for slot, node in nodes:
        for key, value in _read(form, _state(node, slot, where), where).items():
            if key == STEP:
                made[STEP] = value
            else:
                entries.setdefault(key, []).append((slot, _check_shape(value, slot, parameter, where)))
    for key, parts in entries.items():
        if len(parts) == len(nodes):
            made[key] = torch.empty_like(parameter).copy_(join_slots(parts))
    return made


def keys(form: Tree) -> set[str]:
    """The names of PyTorch's entries in *form*."""
    if isinstance(form, dict):
        return {key for inner in form.values() for key in keys(inner)}
    return keys(form.value) if isinstance(form, Some) else {form} - {AVERAGE}


def _build_record(form: Tree, leaf: Callable[[str], Tree], names: set[str]) -> Tree:
    if isinstance(form, str):
        return leaf(form) if form in names else None
    if isinstance(form, Some):
        inner = _build_record(form.value, leaf, names)
        return None if inner is None else Some(inner)
    made = {key: _build_record(inner, leaf, names) for key, inner in form.items()}
    lacking = any(made[key] is None and not isinstance(inner, Some) for key, inner in form.items())
    return None if lacking else made


def _read(form: Tree, node: Tree, where: str) -> dict[str, Any]:
    if isinstance(form, Some):
        return {} if node is None else _read(form.value, node, where)
    if isinstance(form, dict):
        if not isinstance(node, dict):
            raise RecordError(f"{where}: found {_describe(node)}, expected {', '.join(form)}")
        return {
            name: value
            for key, inner in form.items()
            for name, value in _read(inner, node.get(key), f"{where}.{key}").items()
        }
    if form == AVERAGE:
        return {}
    if form == STEP and isinstance(node, int) and not isinstance(node, bool) and node >= 0:
        return {STEP: node}
    if form == STEP or not isinstance(node, RawTensor):
        expected = "count" if form == STEP else "tensor"
        raise RecordError(
            f"{where}: found {_describe(node)}, expected a {expected}. Check that the record is that of an "
            "optimizer of the same class"
        )
    return {form: node}


def _state(node: Tree, slot: Slot, where: str) -> Tree:
    """What is in ``{"V1": {"Rank2": …}}``."""
    for expected in ("V1", "Rank"):
        if not isinstance(node, dict) or len(node) != 1 or not next(iter(node)).startswith(expected):
            raise RecordError(f"{where}, {slot.id}: found {_describe(node)}, expected {expected}")
        node = next(iter(node.values()))
    return node


def _check_shape(found: RawTensor, slot: Slot, parameter: Tensor, where: str) -> RawTensor:
    expected = tuple(view_slot(slot, parameter).shape)
    if found.shape != expected:
        raise RecordError(f"{where}, {slot.id}: found shape {list(found.shape)}, expected {list(expected)}")
    return found


def _is_like(entry: Any, parameter: Tensor) -> bool:
    return isinstance(entry, Tensor) and entry.shape == parameter.shape and entry.dtype in DTYPE_NAMES


def _is_step_count(count: Any) -> bool:
    """Whether *count* is a number of steps that a record can have."""
    if isinstance(count, Tensor) and (count.numel() != 1 or count.is_complex()):
        return False
    return isinstance(count, Tensor | int | float) and float(count) >= 0 and float(count).is_integer()


def _average(state: Mapping[str, Tensor]) -> Tensor:
    square, mean = state["square_avg"], state.get("grad_avg")
    return square if mean is None else square - mean * mean


def lazy_tensor(make: Callable[[], Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> RawTensor:
    """Return the tensor that *make* computes when its bytes are asked for."""
    return RawTensor(DTYPE_NAMES[dtype], shape, lambda: to_raw(make()).pieces())


def _describe(node: Tree) -> str:
    return f"fields {', '.join(map(str, node))}" if isinstance(node, dict) else type(node).__name__
