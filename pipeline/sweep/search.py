"""The search of a sweep: Optuna's samplers choose the points, batch by batch, from the results so far.

A search stores nothing. Optuna's study is in memory, and the sampler has a seed. The trials of a batch are
drawn at once, and their results are reported in the order of the trials when all have finished. So the
trials depend on the experiments in git only, neither on the order in which points finish nor on their number
at a time, and a search that is repeated draws the same trials again.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from pipeline.comparison.runs import MetricCurve
from pipeline.sweep.plan import Point
from pipeline.sweep.space import read_space
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
        return {each.title for each in self._space.dimensions}

    def ask(self) -> list[Point]:
        """Return the points of the next batch, each once; an empty list after the last trial."""
        self._batch = {}
        distributions = {each.name: each.distribution for each in self._space.dimensions}
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
        for trial, curve, stopped in sorted(told, key=lambda each: each[0].number):
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
