"""The plan of a sweep: its points, the names of their experiments, and which of these exist or cannot run.

The points are the grid of the values in ``-S``, expanded by the rules of DVC. The name of an experiment has
the values that vary, in characters that git allows in a ref. A point is finished if git has its experiment,
so the sweep stores no list of finished points, which could become stale.
"""

import hashlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dvc.exceptions import DvcException
from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import get_hydra_sweeps, to_hydra_overrides
from hydra.errors import HydraException

from pipeline.comparison.tables import short_names
from pipeline.engine.project_copy import FrozenProject
from pipeline.project.git import run_git, try_git
from pipeline.project.inputs import find_outside_data
from pipeline.project.lockfile import list_inputs
from pipeline.project.params import build_params_error
from pipeline.project.params_edit import check_content, override_content, parse_params
from pipeline.project.snapshot import look_up
from pipeline.project.yaml_files import stages_of
from stages.contracts.errors import ParamsError
from stages.params.fit_params import CHANGES_NO_NUMBER

PARAMS = "params.yaml"
EPOCHS = "fit.num_epochs"
REPEATED_SEEDS = ("build_learner.seed", "fit.seed")
"""The params of which each repeat of a point has other values."""
FOLDS = ("load_data.folds", "load_data.fold")
"""The params with the number of folds, and with that of a point."""
MAX_NAME_LENGTH = 80
_BRACKETS = re.compile(r"[\[\]{}'\"\s]")
_HASH_LINES = re.compile(r"^ {6}(md5|size|nfiles): .*\n", re.MULTILINE)
_ILLEGAL = re.compile(r"[^A-Za-z0-9._+=,-]+")


@dataclass(frozen=True)
class Point:
    """One value for every param that a sweep sets."""

    overrides: tuple[tuple[str, tuple[str, ...]], ...]
    """Each params file and its overrides, in the syntax of DVC's ``-S``; deterministic."""
    varying: tuple[tuple[str, str], ...]
    """The keys that differ between points, with the values of this one; all keys if the sweep has no grid."""

    @classmethod
    def of(cls, files: Mapping[str, Sequence[str]], varying: tuple[tuple[str, str], ...]) -> "Point":
        """Return the point with the overrides in *files*, by params file."""
        return cls(tuple((path, tuple(overrides)) for path, overrides in files.items()), varying)

    @property
    def set_params(self) -> tuple[str, ...]:
        """The overrides as ``FILE:KEY=VALUE``."""
        return tuple(f"{path}:{override}" for path, overrides in self.overrides for override in overrides)


@dataclass(frozen=True)
class PlannedPoint:
    """A point and its experiment, before anything runs."""

    point: Point
    name: str
    """The name of its experiment."""
    is_done: bool = False
    """Whether the experiment exists, with these params and this code."""
    mistake: str = ""
    """The error in its params, because of which it cannot run, or an empty string."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The contents of the params files for this point, by file name."""
    replaces: str = ""
    """The commit of its experiment of fewer epochs, which a new one replaces, or an empty string."""

    @property
    def run(self) -> str:
        """A text that is equal for points that fit would train in one run store."""
        params = self.params.get(PARAMS, {})
        fit = {key: value for key, value in (params.get("fit") or {}).items() if key not in CHANGES_NO_NUMBER}
        others = {name: content for name, content in self.params.items() if name != PARAMS}
        parts = [params.get("load_data"), params.get("build_learner"), fit, others]
        return json.dumps(parts, sort_keys=True, default=str)


def expand(set_params: Sequence[str], *, draw: int | None = None, seed: int = 0) -> list[Point]:
    """Return every point of the grid of *set_params*, in the order in which the values are written.

    *draw* selects that many points without replacement, in an order that depends only on *seed*: a larger
    *draw* begins with the points of a smaller one. Raises `ParamsError` for overrides that DVC cannot parse,
    a key that is set twice, and an empty grid.
    """
    parsed = [
        (path, override) for path, overrides in parse_overrides(set_params).items() for override in overrides
    ]
    if interval := next((override for _, override in parsed if override.is_interval_sweep()), None):
        raise ParamsError(
            f"-S {interval.input_line}: a grid has no intervals. Add for example --search tpe --trials 30"
        )
    swept = [(path, override.key_or_group) for path, override in parsed if override.is_sweep_override()]
    state = random.getstate()
    random.seed(seed)  # hydra's shuffle(…) uses the global generator
    try:
        grid = [_point(overrides, swept) for overrides in get_hydra_sweeps(to_path_overrides(set_params))]
    except (DvcException, HydraException) as error:
        raise _syntax_error(set_params, error) from error
    finally:
        random.setstate(state)
    points = list(dict.fromkeys(grid))
    if not points:
        raise ParamsError(f"-S {' -S '.join(set_params)}: the grid has no points. Give each key a value")
    if draw is None:
        return points
    random.Random(seed).shuffle(points)  # noqa: S311  a sample, not a secret
    return points[:draw]


def repeat(points: Sequence[Point], count: int) -> list[Point]:
    """Return each of *points* with the seeds 1 to *count* of the weights and of the training; 1 changes none.

    Raises `ParamsError` if a point sets one of these seeds.
    """
    seeds = range(1, count + 1)
    return _multiply(points, "repeat", [dict.fromkeys(REPEATED_SEEDS, seed) for seed in seeds])


def fold(points: Sequence[Point], count: int) -> list[Point]:
    """Return each of *points* with the folds 1 to *count* of the data as its valid split; 1 changes none.

    Raises `ParamsError` if a point sets a param of the folds.
    """
    folds = range(1, count + 1)
    return _multiply(points, "fold", [dict(zip(FOLDS, (count, number), strict=True)) for number in folds])


def _multiply(points: Sequence[Point], name: str, variants: Sequence[Mapping[str, int]]) -> list[Point]:
    """Return each of *points* with each of *variants*, which set the same params, if there are several.

    *name* is the title of the number of a variant.
    """
    if len(variants) == 1:
        return list(points)
    overrides = [override for point in points for _, file in point.overrides for override in file]
    keys = set(map(_key_of, overrides))
    if taken := sorted(keys.intersection(variants[0])):
        option = {"repeat": "--repeat", "fold": "--folds"}[name]
        raise ParamsError(f"{option} {len(variants)} sets {' and '.join(variants[0])}. Remove -S {taken[0]}")
    numbered = list(enumerate(variants, start=1))
    return [_with_values(point, variant, (name, str(n))) for point in points for n, variant in numbered]


def _with_values(point: Point, values: Mapping[str, int], *titles: tuple[str, str]) -> Point:
    """Return *point* with *values* of params.yaml, and with *titles* among those that vary."""
    files = dict(point.overrides)
    others = [override for override in files.get(PARAMS, ()) if _key_of(override) not in values]
    files[PARAMS] = (*others, *(f"++{key}={value}" for key, value in values.items()))
    return Point.of(files, (*point.varying, *titles))


def _key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def parse_overrides(set_params: Sequence[str]) -> dict[str, list[Any]]:
    """Return Hydra's overrides of each params file.

    Raises `ParamsError` if there are none, for those that DVC cannot parse, and for a key that is set twice.
    """
    if not set_params:
        raise ParamsError("the sweep has no params to vary. Add for example -S fit.batch_size=32,64")
    try:
        parsed = {
            path: to_hydra_overrides(overrides) for path, overrides in to_path_overrides(set_params).items()
        }
    except (DvcException, HydraException) as error:
        raise _syntax_error(set_params, error) from error
    for path, overrides in parsed.items():
        keys = Counter(override.key_or_group for override in overrides)
        if twice := [key for key, count in keys.items() if count > 1]:  # DVC would use the last values only
            raise ParamsError(f"-S sets {path}:{twice[0]} twice. Join the values, as in {twice[0]}=1,2")
    return parsed


def plan_points(
    base: FrozenProject, points: Sequence[Point], epochs: int | None = None
) -> list[PlannedPoint]:
    """Return the plan of each of *points* at this moment; with *epochs*, only up to that epoch.

    An experiment of more epochs then counts too.
    """
    existing = _Experiments(
        base, base.experiments(), run_git(base.root, "rev-parse", f"{base.commit}^{{tree}}")
    )
    named = zip(points, short_point_names(points), strict=True)
    return [_plan_point(existing, point, short, epochs) for point, short in named]


def check_plan(planned: Sequence[PlannedPoint]) -> None:
    """Raise `ParamsError` if no point of *planned* has valid params: then the mistake is in the command."""
    if planned and all(point.mistake for point in planned):
        raise ParamsError(f"no point can run; the first is {planned[0].name}: {planned[0].mistake}")


@dataclass(frozen=True)
class _Experiments:
    """The experiments of a project at one moment."""

    base: FrozenProject
    commits: Mapping[str, str]
    """Name to commit."""
    tree: str
    """The tree of the project."""

    def find(self, names: Sequence[str], params: Mapping[str, Any]) -> str | None:
        """Return the first of *names* whose experiment has *params*, or None."""
        candidates = (name for name in names if name in self.commits)
        return next((name for name in candidates if is_result(self.base, self.commits[name], params)), None)

    def count_epochs(self, name: str, most: int) -> int | None:
        """Return the epochs of the experiment *name* if it exists and has at most *most*, or None."""
        params = self.base.content(PARAMS, self.commits[name]) if name in self.commits else {}
        epochs = (params.get("fit") or {}).get("num_epochs")
        return epochs if isinstance(epochs, int) and epochs <= most else None


def _plan_point(existing: _Experiments, point: Point, short: str, epochs: int | None) -> PlannedPoint:
    try:
        params = params_of(existing.base, point)
    except ParamsError as error:
        return PlannedPoint(point, short or name_with_hash(point, point.overrides), mistake=str(error))
    names = [
        *filter(None, [short]),
        name_with_hash(point, params),
        name_with_hash(point, [params, existing.tree]),
    ]
    free = next((name for name in names if name not in existing.commits), names[-1])
    if epochs is not None:
        return _plan_rung(existing, PlannedPoint(point, free, params=params), names, epochs)
    name = existing.find(names, params)
    return PlannedPoint(point, name or free, is_done=name is not None, params=params)


def _plan_rung(
    existing: _Experiments, planned: PlannedPoint, names: Sequence[str], epochs: int
) -> PlannedPoint:
    """Return the point *planned* up to *epochs*, with its experiment of any number of epochs, if any."""
    most = count_epochs(existing.base, planned.params)
    rung = with_epochs(planned, existing.base, epochs)
    for name in names:
        reached = existing.count_epochs(name, most)
        if reached and existing.find([name], with_epochs(planned, existing.base, reached).params):
            if reached >= epochs:
                return replace(rung, name=name, is_done=True)
            return replace(rung, name=name, replaces=existing.commits[name])
    return rung


def with_epochs(planned: PlannedPoint, base: FrozenProject, epochs: int) -> PlannedPoint:
    """Return the point *planned* with that number of epochs, and with the same name."""
    content = planned.params.get(PARAMS) or base.content(PARAMS)
    params = {
        **planned.params,
        PARAMS: {**content, "fit": {**fit_params(base, planned.params), "num_epochs": epochs}},
    }
    return replace(planned, point=_with_values(planned.point, {EPOCHS: epochs}), params=params)


def fit_params(base: FrozenProject, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of `fit` of a point with *params*."""
    return (params.get(PARAMS) or base.content(PARAMS)).get("fit") or {}


def list_gpus(base: FrozenProject, params: Mapping[str, Any]) -> list[str]:
    """Return the devices in ``fit.device`` of a point with *params* other than the CPU."""
    named = fit_params(base, params).get("device", "auto")
    return [name for name in ([named] if isinstance(named, str) else named) if name != "cpu"]


def count_epochs(base: FrozenProject, params: Mapping[str, Any]) -> int:
    """Return the number of epochs of a point with *params*. Raises `ParamsError` if they have none."""
    epochs = fit_params(base, params).get("num_epochs")
    if not isinstance(epochs, int):
        raise ParamsError(f"--stop needs {EPOCHS} in {PARAMS}. Add it")
    return epochs


def short_point_names(points: Sequence[Point]) -> list[str]:
    """Return a name for each point, as in ``batch_size=32,learning_rate=0.001``; empty if not unique."""
    titles = short_names(sorted({key for point in points for key, _ in point.varying}))
    names = [_legal(",".join(f"{titles[key]}={value}" for key, value in point.varying)) for point in points]
    counts = Counter(names)
    return [name if counts[name] == 1 and len(name) <= MAX_NAME_LENGTH else "" for name in names]


def name_with_hash(point: Point, content: Any) -> str:
    """Return a name for *point* that ends in a hash of *content*, which consists of plain values."""
    text = json.dumps(content, sort_keys=True, default=str)
    values = _legal(",".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.varying))
    digest = hashlib.sha256(text.encode()).hexdigest()[:7]
    return f"{values[:MAX_NAME_LENGTH].rstrip('.,=-')}-{digest}"


def params_of(base: FrozenProject, point: Point) -> dict[str, Any]:
    """Return the content of each params file that *point* changes, by its name.

    Raises `ParamsError` if the params would not be valid, also if it does not change params.yaml.
    """
    contents = {}
    for name, overrides in point.overrides:
        text = base.text(name)
        if text is None:
            raise ParamsError(
                f"git does not track {name}, which -S changes, or it is a link out of the repository. "
                f"Put the file into the project and run `git add {name}`"
            )
        contents[name] = override_content(overrides, text, name)
    if content := contents.get(PARAMS) or base.content(PARAMS):
        _check_params(content, base)
    return contents


def is_result(base: FrozenProject, commit: str, params: Mapping[str, Any]) -> bool:
    """Return whether the experiment *commit* has these *params*, and all other inputs are those of *base*."""
    if any(base.content(name, commit) != content for name, content in params.items()):
        return False
    stages = stages_of(_read_lock(base, commit, params)).values()
    if not stages or _differ(base, commit, {"dvc.yaml", *_sources(stages)}, compared=params):
        return False
    recorded = [
        entry for stage in stages for entry in (stage.get("params") or {}).items() if entry[0] not in params
    ]
    return all(
        look_up(base.content(name), key) == value
        for name, values in recorded
        for key, value in values.items()
    )


def _read_lock(base: FrozenProject, commit: str, params: Iterable[str]) -> Any:
    """Return the dvc.lock of *commit* without hashes, sizes and the values of the files *params*.

    DVC writes those in lines that begin with as many spaces. The rest is the same text for all points.
    """
    text = _HASH_LINES.sub("", base.text("dvc.lock", commit) or "")
    for name in params:
        text = re.sub(rf"^ {{6}}{re.escape(name)}:\n( {{7,}}.*\n|\n)*", "", text, flags=re.MULTILINE)
    return parse_params(text, "dvc.lock")


def _point(overrides: dict[str, list[str]], swept: Sequence[tuple[str, str]]) -> Point:
    values = [
        ((path, override.key_or_group), override.get_value_element_as_str())
        for path, file_overrides in overrides.items()
        for override in to_hydra_overrides(file_overrides)
    ]
    varying = tuple((key, value) for (path, key), value in values if not swept or (path, key) in swept)
    return Point.of(overrides, varying)


def _syntax_error(set_params: Sequence[str], error: Exception) -> ParamsError:
    first = " ".join(str(error).split("\nSee ")[0].split("\n"))
    return ParamsError(f"-S {' -S '.join(set_params)}: {first}")


def _legal(text: str) -> str:
    """Return *text* without the characters that git forbids in a ref or that a shell interprets."""
    text = _ILLEGAL.sub("-", _BRACKETS.sub("", text))
    return re.sub(r"\.\.+", ".", text).strip(".-").removesuffix(".lock")


def _sources(stages: Any) -> Iterator[str]:
    """Yield the inputs of the stages that no stage writes and git may have.

    The ``.dvc`` file of an input may be that of a folder that contains it. Git has none of an absolute path
    or an address.
    """
    for name in list_inputs(stages):
        path = PurePosixPath(name)
        if ":" in name or path.is_absolute():
            continue
        folders = [folder for folder in path.parents if folder.name not in ("", "..")]
        yield from (name, *(f"{place}.dvc" for place in (path, *folders)))


def _differ(base: FrozenProject, commit: str, paths: set[str], *, compared: Iterable[str]) -> bool:
    """Return whether a file of *paths*, or below one, differs in *commit*, other than the *compared* files.

    All are relative to the project. The user's code may read a file of params, which is then in deps too.
    """
    paths = paths.difference(compared)
    first = {PurePosixPath(path).parts[0] for path in paths}
    if ".." not in first and base.list_changed_entries(commit).isdisjoint(first):
        return False
    command = ["diff", "--name-only", "--no-renames", "-z", base.commit, commit, "--", *sorted(paths)]
    differing = try_git(base.root, "--literal-pathspecs", *command)
    folder = base.root.relative_to(base.top)
    names = {os.path.normpath(folder / name) for name in compared}
    return differing.returncode != 0 or not names.issuperset(filter(None, differing.stdout.split("\0")))


def _check_params(content: Any, base: FrozenProject) -> None:
    definition = base.content("dvc.yaml")
    params = check_content(content, Path(PARAMS), definition)
    if outside := find_outside_data(params, definition, base.root):
        raise build_params_error(Path(PARAMS), outside)
