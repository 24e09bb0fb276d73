"""The values of metrics that several ranks measure on their shares of a batch."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from stages.contracts.errors import RecordError
from stages.contracts.outputs import as_count
from stages.distributed import RankGroup
from stages.metrics import Mean, MetricState
from stages.metrics.state import load_state, save_state
from stages.records import Tree, decode_state, encode_state

Pending = tuple[str, int, MetricState]


def add_rank_values(
    group: RankGroup,
    iterations: Sequence[int],
    columns: Mapping[str, Sequence[MetricState]],
    own: Collection[str],
) -> dict[str, list[MetricState]]:
    """Return *columns*, values of *iterations* by metric, with those of all ranks added, on rank 0.

    The metrics in *own* have the value of rank 0, which has a sample of every batch.
    """
    values = [
        (name, iteration, value)
        for name, column in columns.items()
        for iteration, value in zip(iterations, column, strict=True)
    ]
    gathered = group.gather(_encode([value for value in values if value[0] not in own]))
    added = {(name, iteration): value for name, iteration, value in values}
    for tree in gathered[1:]:
        _add(added, tree)
    return {name: [added[name, iteration] for iteration in iterations] for name in columns}


def _encode(values: Sequence[Pending]) -> dict[str, Any]:
    """Return *values* as a tree: a tensor of (iteration, total, weight) for means, a map for others."""
    means: dict[str, list[tuple[float, ...]]] = {}
    others: dict[str, dict[str, Any]] = {}
    for name, iteration, value in values:
        if type(value) is Mean:
            means.setdefault(name, []).append((iteration, float(value.total), float(value.weight)))
        else:
            others.setdefault(name, {})[str(iteration)] = encode_value(value, name)
    rows = {name: torch.tensor(mean, dtype=torch.float64) for name, mean in means.items()}
    return {"means": rows, "others": others}


def _add(added: dict[tuple[str, int], Any], tree: Mapping[str, Any]) -> None:
    """Add the values in *tree*, which `_encode` returned on another rank."""
    for name, rows in tree["means"].items():
        for iteration, total, weight in rows.tolist():
            added[name, int(iteration)] += Mean(total, as_count(weight))
    for name, states in tree["others"].items():
        for iteration, state in states.items():
            earlier = added[name, int(iteration)]
            added[name, int(iteration)] = earlier + load_state(decode_state(state), earlier, name)


def encode_value(value: MetricState, metric: str) -> Tree:
    """Return the state of *value* as a tree that every record can hold.

    Raises `TypeError`, which names the *metric*, if it has none or a part of it cannot be recorded.
    """
    try:
        return encode_state(
            save_state(value, metric), f"metric {metric!r}: {type(value).__name__}.state_dict()"
        )
    except RecordError as error:
        raise TypeError(str(error)) from None
