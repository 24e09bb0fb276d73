"""What a sweep has to do: each point with its name, and whether it is done, or cannot be."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.engine.frozen_inputs import FrozenProject
from pipeline.engine.git import run_git
from pipeline.sweep.names import plain_names, told_apart
from pipeline.sweep.points import Point
from pipeline.sweep.results import PARAMS, is_result, params_of
from stages.contracts.errors import ParamsError
from stages.params.fit_params import CHANGES_NO_NUMBER


@dataclass(frozen=True)
class Planned:
    """A point, looked at before anything runs."""

    point: Point
    name: str
    """What its experiment is called."""
    is_done: bool = False
    """Whether there is such an experiment with these params and this code."""
    mistake: str = ""
    """What is wrong with its params; it cannot run then."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """What the params files say then."""

    @property
    def run(self) -> str:
        """The same for points that fit would train in one run store."""
        own = self.params.get(PARAMS, {})
        fit = {key: value for key, value in (own.get("fit") or {}).items() if key not in CHANGES_NO_NUMBER}
        others = {name: content for name, content in self.params.items() if name != PARAMS}
        parts = [own.get("load_data"), own.get("build_learner"), fit, others]
        return json.dumps(parts, sort_keys=True, default=str)

    @property
    def wants_gpu(self) -> bool:
        """Whether its params leave it to use one."""
        return bool((self.params.get(PARAMS, {}).get("fit") or {}).get("device", "auto") != "cpu")


def plan(base: FrozenProject, points: Sequence[Point]) -> list[Planned]:
    """Each of *points* as it stands now.

    Raises `ParamsError` where not one of them has valid params: that is a mistake in what was typed.
    """
    there = base.experiments()
    tree = run_git(base.root, "rev-parse", f"{base.commit}^{{tree}}")
    planned = [_planned(base, *each, there, tree) for each in zip(points, plain_names(points), strict=True)]
    if planned and all(each.mistake for each in planned):
        raise ParamsError(f"no point can run; the first is {planned[0].name}: {planned[0].mistake}")
    return planned


def _planned(base: FrozenProject, point: Point, plain: str, there: Mapping[str, str], tree: str) -> Planned:
    try:
        params = params_of(base, point)
    except ParamsError as error:
        return Planned(point, plain or told_apart(point, point.overrides), mistake=str(error))
    names = [*filter(None, [plain]), told_apart(point, params), told_apart(point, [params, tree])]
    for name in names:
        if name in there and is_result(base, there[name], params):
            return Planned(point, name, is_done=True, params=params)
    return Planned(point, next((name for name in names if name not in there), names[-1]), params=params)
