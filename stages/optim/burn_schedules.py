"""Loading of the record of a schedule that Burn wrote, in the layout of 0.21 or of 0.22.

Burn saves a number, from which the steps follow. In 0.22 it has a name and is in a list of groups.
"""

import math
from collections.abc import Mapping
from typing import Any

from stages.contracts.burn import FIELDS
from stages.contracts.errors import RecordError
from stages.optim.scheduler import GroupScheduler, Scheduler
from stages.optim.schedules import (
    Composed,
    Constant,
    Cosine,
    Exponential,
    Linear,
    Rule,
    Step,
)

BEFORE_FIRST = 2**64
"""Burn's integers of 64 bits wrap around: -1 is one less than this."""


def load_burn_schedule(scheduler: Any, record: Any) -> None:
    """Have *scheduler* continue the schedule of a Burn run, whose *record* `read_item` returned.

    Raises `RecordError` if Burn has no such schedule, or if the record is that of another one; *scheduler* is
    then unchanged.
    """
    if isinstance(scheduler, GroupScheduler) and isinstance(record, list):
        for number, own in enumerate(scheduler.own, start=1):
            load_burn_schedule(own, [_find(record, number)])
    rule = scheduler.schedule if isinstance(scheduler, Scheduler) else None
    if not isinstance(rule, Rule) or rule.per != "batch" or rule.warmup or rule.spans:
        raise RecordError(f"Burn has no such schedule: {type(rule or scheduler).__name__}")
    is_grouped = isinstance(record, list) or (isinstance(record, Mapping) and record.keys() == {"0"})
    steps = _count_steps(rule, scheduler.initial, _find(record, 0) if is_grouped else record)
    scheduler.iteration = scheduler.iteration if steps is None else steps


def _count_steps(rule: Rule, initial: float, node: Any) -> int | None:
    """Return the steps after which *rule* has Burn's state *node*; None for a constant rate."""
    if isinstance(rule, Constant):
        return None
    if isinstance(rule, Composed):
        parts = node.get("schedulers", node) if isinstance(node, Mapping) else node
        counts = [
            _count_steps(part, rule.start(initial), _find(parts, number))
            for number, part in enumerate(rule.schedulers)
        ]
        return max((count for count in counts if count is not None), default=None)
    kind = rule.burn_state(initial, 0).kind
    if isinstance(node, Mapping):
        node = node.get(kind, node.get(FIELDS[kind].name))
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise RecordError(f"the record has no state of a {kind} schedule")
    return max(_invert(rule, initial, node), 0)


def _invert(rule: Rule, initial: float, number: float) -> int:
    """Return the steps after which *rule* saves *number*."""
    if isinstance(rule, Linear):
        return int(rule.num_iters) + 1 - int(number)
    if isinstance(rule, Cosine):
        return (int(number) + 1) % BEFORE_FIRST
    if isinstance(rule, Step):
        return int(number) + 1
    if isinstance(rule, Exponential):
        return 0 if rule.gamma == 1 else round(math.log(number / rule.start(initial), rule.gamma)) + 1
    return int(number)


def _find(parts: Any, number: int) -> Any:
    """Return the part *number* of a list, or of a map, in which a part without a state is missing."""
    if isinstance(parts, Mapping):
        return parts.get(str(number))
    return parts[number] if isinstance(parts, list) and number < len(parts) else None
