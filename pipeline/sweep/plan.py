"""The plan of a sweep: for each point the name of its experiment, and whether that exists or cannot run.

The name of an experiment has the values that vary, in characters that git allows in a ref.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.comparison.tables import short_names
from pipeline.engine.frozen_inputs import FrozenProject
from pipeline.engine.git import run_git
from pipeline.sweep.points import Point
from pipeline.sweep.results import PARAMS, is_result, params_of
from stages.contracts.errors import ParamsError
from stages.params.fit_params import CHANGES_NO_NUMBER

MAX_NAME_LENGTH = 80
_BRACKETS = re.compile(r"[\[\]{}'\"\s]")
_ILLEGAL = re.compile(r"[^A-Za-z0-9._+=,-]+")


@dataclass(frozen=True)
class PlannedPoint:
    """A point and its experiment, before anything runs."""

    point: Point
    name: str
    """The name of its experiment."""
    is_done: bool = False
    """Whether the experiment exists, with these params and this code."""
    mistake: str = ""
    """The error in its params, because of which it cannot run; empty if there is none."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The contents of the params files for this point, by file name."""

    @property
    def run(self) -> str:
        """A text that is equal for points that fit would train in one run store."""
        own = self.params.get(PARAMS, {})
        fit = {key: value for key, value in (own.get("fit") or {}).items() if key not in CHANGES_NO_NUMBER}
        others = {name: content for name, content in self.params.items() if name != PARAMS}
        parts = [own.get("load_data"), own.get("build_learner"), fit, others]
        return json.dumps(parts, sort_keys=True, default=str)

    @property
    def can_use_gpu(self) -> bool:
        """True if its params allow the use of a GPU."""
        return bool((self.params.get(PARAMS, {}).get("fit") or {}).get("device", "auto") != "cpu")


def plan_points(base: FrozenProject, points: Sequence[Point]) -> list[PlannedPoint]:
    """Return the plan of each of *points* at this moment.

    Raises `ParamsError` if none of them has valid params: then the mistake is in the command.
    """
    experiments = base.experiments()
    tree = run_git(base.root, "rev-parse", f"{base.commit}^{{tree}}")
    planned = [
        _plan_point(base, point, short, experiments, tree)
        for point, short in zip(points, short_point_names(points), strict=True)
    ]
    if planned and all(each.mistake for each in planned):
        raise ParamsError(f"no point can run; the first is {planned[0].name}: {planned[0].mistake}")
    return planned


def short_point_names(points: Sequence[Point]) -> list[str]:
    """Return a name for each point, as in ``batch_size=32,learning_rate=0.001``; empty if not unique."""
    titles = short_names(sorted({key for point in points for key, _ in point.varying}))
    names = [_legal(",".join(f"{titles[key]}={value}" for key, value in each.varying)) for each in points]
    counts = Counter(names)
    return [name if counts[name] == 1 and len(name) <= MAX_NAME_LENGTH else "" for name in names]


def name_with_hash(point: Point, content: Any) -> str:
    """Return a name for *point* that ends in a hash of *content*, which consists of plain values."""
    text = json.dumps(content, sort_keys=True, default=str)
    values = _legal(",".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.varying))
    digest = hashlib.sha256(text.encode()).hexdigest()[:7]
    return f"{values[:MAX_NAME_LENGTH].rstrip('.,=-')}-{digest}"


def _legal(text: str) -> str:
    """Return *text* without the characters that git forbids in a ref or that a shell interprets."""
    text = _ILLEGAL.sub("-", _BRACKETS.sub("", text))
    return re.sub(r"\.\.+", ".", text).strip(".-").removesuffix(".lock")


def _plan_point(
    base: FrozenProject, point: Point, short: str, experiments: Mapping[str, str], tree: str
) -> PlannedPoint:
    try:
        params = params_of(base, point)
    except ParamsError as error:
        return PlannedPoint(point, short or name_with_hash(point, point.overrides), mistake=str(error))
    names = [*filter(None, [short]), name_with_hash(point, params), name_with_hash(point, [params, tree])]
    for name in names:
        if name in experiments and is_result(base, experiments[name], params):
            return PlannedPoint(point, name, is_done=True, params=params)
    free = next((name for name in names if name not in experiments), names[-1])
    return PlannedPoint(point, free, params=params)
