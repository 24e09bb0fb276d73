"""The search of a sweep: Optuna's samplers choose the points, batch by batch, from the results so far.

A search stores nothing. Optuna's study is in memory, and the sampler has a seed. The trials of a batch are
drawn at once, and their results are reported in the order of the trials when all have finished. So the
trials depend on the experiments in git only, neither on the order in which points finish nor on their number
at a time, and a search that is repeated draws the same trials again.

The syntax of its space in ``-S`` is that of Hydra's sweeper for Optuna: ``interval(a,b)``,
``tag(log,interval(a,b))`` and ``int(interval(a,b))`` beside the lists, ``choice(…)`` and ``range(…)`` of a
grid. A list or a range has the same values as in a grid.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from pipeline.comparison.runs import MetricCurve
from pipeline.sweep.plan import Point, parse_overrides
from pipeline.sweep.stopping import Curves, StopRule, rank
from stages.contracts.errors import ParamsError

DEFAULT_BATCH = 5
"""The default of ``--batch``. It does not depend on ``--jobs``, which changes no trial."""
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tpe": ("TPESampler", {}),
    "gp": ("GPSampler", {}),
    "cmaes": ("CmaEsSampler", {}),
    "qmc": ("QMCSampler", {"scramble": True}),  # otherwise the seed has no effect
    "random": ("RandomSampler", {}),
}
"""The values of ``--search``: the class of Optuna, and its arguments beside the seed."""
MAX_SEED = 2**32 - 1
"""The largest seed of NumPy's generator, which Optuna uses."""
PERCENTILE = 25.0
"""The percentile of the finished trials that a point must reach to continue, with ``--stop percentile``."""
DIGITS_IN_NAMES = 4
"""Significant digits of a real number in the name of an experiment; its params have all digits."""


@dataclass(frozen=True)
class SearchOptions:
    """How a search draws its trials."""

    sampler: str
    """A key of `SAMPLERS`."""
    trials: int
    batch: int = DEFAULT_BATCH
    """The number of trials that are drawn before the results of any of them are known."""
    seed: int = 0


class Search:
    """The trials of a search: call `ask` for the points of a batch, run them, and `tell` their results.

    Raises `ParamsError` if Optuna is not installed, for a seed out of range, and as `read_space` does.
    """

    def __init__(self, set_params: Sequence[str], options: SearchOptions) -> None:
        if not 0 <= options.seed <= MAX_SEED:
            raise ParamsError(f"--seed of --search must be from 0 to {MAX_SEED}; found {options.seed}")
        self.options = options
        self._optuna = _import_optuna(options.sampler)
        self._space = read_space(set_params, self._optuna)
        self._study = _create_study(self._optuna, options)
        self.drawn = 0
        self._batch: dict[Point, list[Any]] = {}
        """The points of the batch in progress and their trials; equal trials share a point."""
        self._reported: dict[int, int] = {}
        """The last epoch that was reported of a trial, by its number."""

    @property
    def size(self) -> int:
        """The number of trials in the batch in progress."""
        return sum(map(len, self._batch.values()))

    @property
    def varying(self) -> set[str]:
        """The keys of the params that vary."""
        return {dimension.title for dimension in self._space.dimensions}

    def ask(self) -> list[Point]:
        """Return the points of the next batch, each once; an empty list after the last trial."""
        self._batch = {}
        distributions = {dimension.name: dimension.distribution for dimension in self._space.dimensions}
        for _ in range(min(self.options.batch, self.options.trials - self.drawn)):
            trial = self._study.ask(distributions)
            self._batch.setdefault(self._space.point(trial.params), []).append(trial)
            self.drawn += 1
        return list(self._batch)

    def tell(self, results: Sequence[tuple[MetricCurve | None, int | None]]) -> None:
        """Record the result of each point: its curve, and the epoch after which it was stopped, if it was.

        A point without a curve, or without a finite value, has failed.
        """
        of_points = zip(self._batch.values(), results, strict=True)
        told = [(trial, *result) for trials, result in of_points for trial in trials]
        states = self._optuna.trial.TrialState
        for trial, curve, stopped in sorted(told, key=lambda result: result[0].number):
            value = rank(curve, stopped or math.inf)
            if curve is None or value is None:
                self._study.tell(trial, state=states.FAIL)
            elif stopped is None:
                self._study.tell(trial, value)
            else:
                self._report(trial, curve, stopped)
                self._study.tell(trial, state=states.PRUNED)

    def use_pruner(self, rule: StopRule, rungs: Sequence[int]) -> None:
        """Let Optuna's pruner of *rule* choose in `select`, after the epochs *rungs*."""
        if rule.pruner == "HyperbandPruner":
            bounds = {"min_resource": rungs[0], "max_resource": rungs[-1]}
            self._study.pruner = self._optuna.pruners.HyperbandPruner(**bounds, reduction_factor=rule.factor)
        else:
            self._study.pruner = self._optuna.pruners.PercentilePruner(PERCENTILE)

    def select(self, curves: Curves, epochs: int) -> list[int]:
        """Return the points that continue after the rung of *epochs*, because they are not pruned."""
        trials = [trials[0] for trials in self._batch.values()]
        trained = {number: curve for number, curve in curves.items() if rank(curve, epochs) is not None}
        for number, curve in trained.items():
            self._report(trials[number], curve, epochs)
        return [number for number in trained if not trials[number].should_prune()]

    def _report(self, trial: Any, curve: MetricCurve | None, epochs: int) -> None:
        """Report the best value so far in each epoch up to *epochs* that was not reported yet."""
        for epoch in range(self._reported.get(trial.number, 0) + 1, epochs + 1):
            if (value := rank(curve, epoch)) is not None:
                trial.report(value, epoch)
        self._reported[trial.number] = epochs


def _import_optuna(sampler: str) -> ModuleType:
    try:
        import_module("cmaes")  # Optuna imports it with CmaEsSampler only
        return import_module("optuna")
    except ModuleNotFoundError as error:
        raise ParamsError(
            f"--search {sampler} needs {error.name}, which is not installed. "
            "Run pip install 'learner-pipeline[optuna]'"
        ) from error


def _create_study(optuna: ModuleType, options: SearchOptions) -> Any:
    """Return a study in memory, in which lower values are better, as in `rank`."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    name, arguments = SAMPLERS[options.sampler]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = getattr(optuna.samplers, name)(seed=options.seed, **arguments)
    # a pruner draws lots by the name of the study, which is random by default
    return optuna.create_study(study_name="sweep", sampler=sampler, pruner=optuna.pruners.NopPruner())


@dataclass(frozen=True)
class Dimension:
    """A param of a search and its distribution."""

    path: str
    """The params file."""
    key: str
    """The key, with a plus if the file does not have it."""
    distribution: Any
    """Optuna's distribution, of the position in *texts* or of the value."""
    texts: tuple[str, ...]
    """The values of a list or a range, in the syntax of ``-S``; empty for an interval."""

    @property
    def name(self) -> str:
        """The name of the param in Optuna, unique in the space."""
        return f"{self.path}:{self.key}"

    @property
    def title(self) -> str:
        """The key without a plus."""
        return self.key.lstrip("+")

    def text(self, value: Any) -> str:
        """Return *value* of the distribution as the text of the param, exactly."""
        if self.texts:
            return self.texts[int(value)]
        return repr(int(value) if isinstance(self.distribution.low, int) else float(value))

    def short_text(self, value: Any) -> str:
        """Return *value* of the distribution as a text for the name of the experiment."""
        is_real = not self.texts and isinstance(self.distribution.low, float)
        return f"{value:.{DIGITS_IN_NAMES}g}" if is_real else self.text(value)


@dataclass(frozen=True)
class Space:
    """The params that a search sets."""

    fixed: Mapping[str, Sequence[str]]
    """The overrides of each params file, in the order of ``-S``, that are the same for all points."""
    dimensions: Sequence[Dimension]
    """The params that vary."""

    def point(self, values: Mapping[str, Any]) -> Point:
        """Return the point with *values*, which Optuna drew for the name of each dimension."""
        files = {path: [*overrides] for path, overrides in self.fixed.items()}
        varying = []
        for dimension in self.dimensions:
            value = values[dimension.name]
            files[dimension.path].append(f"{dimension.key}={dimension.text(value)}")
            varying.append((dimension.title, dimension.short_text(value)))
        return Point.of(files, tuple(varying))


def read_space(set_params: Sequence[str], optuna: ModuleType) -> Space:
    """Return the space that *set_params* describe.

    Raises `ParamsError` for overrides that DVC cannot parse, a key that is set twice, a function that has no
    meaning in a search, and a space without a param that varies.
    """
    fixed: dict[str, list[str]] = {}
    dimensions = []
    for path, overrides in parse_overrides(set_params).items():
        fixed[path] = []
        for override in overrides:
            if override.is_sweep_override():
                dimensions.append(_dimension(path, override, optuna.distributions))
            else:
                fixed[path].append(f"{override.get_key_element()}={override.get_value_element_as_str()}")
    if not dimensions:
        raise ParamsError("--search has no param to vary. Add for example -S 'fit.batch_size=range(16,128)'")
    return Space(fixed, dimensions)


def _find_mistake(override: Any) -> str:
    """Return the reason for which a search cannot use *override*; empty if it can."""
    sweep = override.value()
    if not hasattr(sweep, "tags"):  # glob(…)
        return "this function is not supported"
    if override.is_interval_sweep() and not (math.isfinite(sweep.start) and math.isfinite(sweep.end)):
        return "the bounds of an interval must be finite"
    if not override.is_interval_sweep() and sweep.shuffle:
        return "a search draws values in an order of its own. Remove shuffle(…)"
    if sweep.tags - ({"log"} if override.is_interval_sweep() else set()):
        return "the only tag is log, of an interval, as in tag(log,interval(1e-5,1e-1))"
    return ""


def _dimension(path: str, override: Any, distributions: Any) -> Dimension:
    sweep, texts = override.value(), ()
    mistake = _find_mistake(override)
    if not mistake and not override.is_interval_sweep():
        texts = tuple(dict.fromkeys(override.sweep_string_iterator()))
        mistake = "" if texts else "there are no values"
    if mistake:
        raise ParamsError(f"-S {override.input_line}: {mistake}")
    if override.is_range_sweep():
        distribution = distributions.IntDistribution(0, len(texts) - 1)
    elif texts:
        distribution = distributions.CategoricalDistribution(range(len(texts)))
    else:
        kind = "Int" if isinstance(sweep.start, int) else "Float"
        build = getattr(distributions, f"{kind}Distribution")
        try:
            distribution = build(sweep.start, sweep.end, log="log" in sweep.tags)
        except ValueError as error:  # of bounds that are not in order
            raise ParamsError(f"-S {override.input_line}: {error}") from error
    return Dimension(path, override.get_key_element(), distribution, texts)
