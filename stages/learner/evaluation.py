"""Evaluation of a trained model: metrics on named data sets, as in Burn, and the confusion matrix."""

import logging
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Self

import torch

from stages.contracts.burn import Version
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Progress, Renderer, Renderers
from stages.contracts.history import Split
from stages.contracts.outputs import ClassificationOutput
from stages.contracts.printing import print_text
from stages.contracts.step_log import keep_step_log
from stages.devices.compilation import compile_in_place, unwrap_compiled
from stages.devices.compute_settings import ComputeSettings, apply_compute_settings, find_device
from stages.devices.rng import seed_generators
from stages.learner.batches import Loader, iterate_on_device
from stages.learner.builder import AnyMetric
from stages.learner.checks import StepChecks, check_metric_inputs, check_model, check_unique_name
from stages.learner.learner import Learner
from stages.learner.loader_parts import set_loader_epoch
from stages.learner.metering import Meter
from stages.learner.options import find_default, read_directory_history
from stages.learner.registered_metric import MeteredMetric, RegisteredMetric, log_definitions
from stages.learner.step_errors import explain_step_errors
from stages.learner.streams import count_batches
from stages.learner.summary import summary_text
from stages.metrics import ConfusionMatrix
from stages.metrics.class_targets import is_soft
from stages.metrics.classification import select_cells
from stages.optim.mixed_precision import MixedPrecision

MAX_UNMERGED_BATCHES = 64
"""The number of batches whose pairs of classes are held one by one.

The allocator places them into the freed buffers of the batches, which then cannot be reused: 0.5 MB for each.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluatorOptions:
    """Everything that an `EvaluatorBuilder` collects, with its default."""

    directory: Path
    metrics: tuple[RegisteredMetric, ...] = ()
    renderer: Renderer | None = None
    """None for the default of the terminal."""
    progress_loggers: tuple[Renderer, ...] = ()
    device: str | torch.device = "auto"
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    """The precision and the threads of an evaluation."""
    summary: bool = False
    """True to print the table after an evaluation."""
    logger: MetricLogger | None = None
    """None for log files in ``<directory>/test/<name>``."""
    burn: Version | None = None
    """The version of Burn whose metrics and logs an evaluation has."""
    application_log: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered for the duration of an evaluation."""


class EvaluatorBuilder:
    """Builder of an `Evaluator`, which writes its logs to ``<directory>/test/<name>``:

    ```python
    evaluator = EvaluatorBuilder("artifacts").metrics(AccuracyMetric()).summary().build(model)
    values = evaluator.eval("mnist", loader)
    ```
    """

    def __init__(self, directory: Path | str) -> None:
        self._options = EvaluatorOptions(Path(directory).absolute())

    def metric_numeric(self, metric: AnyMetric) -> Self:
        """Measure *metric*, with a row in the summary."""
        return self._register(RegisteredMetric(metric, numeric=True))

    def metric(self, metric: AnyMetric) -> Self:
        """Measure and log *metric*."""
        return self._register(RegisteredMetric(metric, numeric=False))

    def metrics(self, *metrics: AnyMetric) -> Self:
        """Measure *metrics*, with a row in the summary."""
        for metric in metrics:
            self.metric_numeric(metric)
        return self

    def metrics_text(self, *metrics: AnyMetric) -> Self:
        """Measure and log *metrics*."""
        for metric in metrics:
            self.metric(metric)
        return self

    def _register(self, registered: RegisteredMetric) -> Self:
        check_unique_name(registered, self._options.metrics, "an evaluation")
        return self._set(metrics=(*self._options.metrics, registered))

    def metric_logger(self, logger: MetricLogger) -> Self:
        """Log to *logger* instead of ``<directory>/test/<name>``; an evaluation closes it."""
        return self._set(logger=logger)

    def renderer(self, renderer: Renderer) -> Self:
        """Show the evaluation with *renderer*. Default: as in `LearnerBuilder.renderer`."""
        return self._set(renderer=renderer)

    def with_progress_logger(self, logger: Renderer) -> Self:
        """Report the progress to *logger* in addition to the renderer. Default: none."""
        return self._set(progress_loggers=(*self._options.progress_loggers, logger))

    def with_application_logger(self, installer: Callable[[], AbstractContextManager[object]] | None) -> Self:
        """Enter the context that *installer* returns for the duration of an evaluation. Default: none.

        Burn's default is ``lambda: ExperimentLog("<directory>/evaluation.log")``, of `stages.loggers`.
        """
        return self._set(application_log=installer or nullcontext)

    def device(self, device: str | torch.device) -> Self:
        """Evaluate on *device*. Default: the fastest available."""
        return self._set(device=device)

    def compute(self, settings: ComputeSettings) -> Self:
        """Evaluate with *settings*. Default: float32, with torch's number of threads."""
        return self._set(compute=settings)

    def burn(self, version: Version | None) -> Self:
        """Follow a *version* of Burn in metrics and logs; see `LearnerBuilder.burn`."""
        return self._set(burn=version)

    def summary(self) -> Self:
        """Print the table after an evaluation, with the epochs in the logs of the directory. Default: no."""
        return self._set(summary=True)

    def build(self, model: Any) -> "Evaluator":
        """Return the evaluator. Raises `BuilderError` for a model or a metric that cannot work."""
        model, compilers = unwrap_compiled(model)
        check_model(model)
        check_metric_inputs(model, {Split.TRAIN: [], Split.VALID: self._options.metrics})
        device = find_device(self._options.device)
        compile_in_place(model, compilers)
        return Evaluator(replace(self._options, device=device), model.to(device))

    def _set(self, **options: Any) -> Self:
        self._options = replace(self._options, **options)
        return self


class Evaluator:
    """Measures a model on data sets, and does not change it."""

    def __init__(self, options: EvaluatorOptions, model: Any) -> None:
        self._options = options
        self._model = model
        self._device = torch.device(options.device)
        self._renderer = Renderers(
            [options.renderer or find_default("renderers:default_renderer")(), *options.progress_loggers]
        )

    def eval(self, name: str, loader: Loader) -> dict[str, float]:
        """Return the value of every numeric metric over *loader*.

        The logs are in ``test/<name>``, in lower case and with ``-`` for spaces. Raises `BuilderError` for a
        loader without batches and for a name that cannot name a directory.
        """
        return self.eval_all([(name, loader)])[name]

    def eval_all(self, splits: Iterable[tuple[str, Loader]]) -> dict[str, dict[str, float]]:
        """Return the values of `eval` for each of *splits* by its name, and print one summary of them all."""
        with self._options.application_log():
            values = {name: self._evaluate(name, loader) for name, loader in splits}
        if self._options.summary:
            history = read_directory_history(self._options.directory)
            print_text(
                summary_text(history, self._model, tests={find_tag(name): values[name] for name in values})
            )
        return values

    @torch.no_grad()
    def _evaluate(self, name: str, loader: Loader) -> dict[str, float]:
        options, tag, count = self._options, find_tag(name), count_batches(loader)
        if count == 0:
            raise BuilderError(
                f"eval({name!r}): the loader has no batches; pass one with at least one sample"
            )
        logger = options.logger or find_default("loggers:TestMetricLogger")(options.directory / "test" / tag)
        metrics: list[MeteredMetric] = [(metric, [logger]) for metric in options.metrics]
        meter = Meter(
            metrics, self._renderer, Split.VALID, 1, burn=options.burn, is_test=True, log_loggers=[logger]
        )
        shown = {metric.name: metric.shown for metric in options.metrics}
        progress = Progress(
            1, epoch=1, split=Split.VALID, batches=count or 0, running=meter.running, shown=shown
        )
        progress.latest = meter.latest
        try:
            log_definitions(metrics)
            with (
                keep_modes(self._model),
                keep_step_log(),
                explain_step_errors(self._model),
                apply_compute_settings(options.compute, self._device),
            ):
                self._measure(loader, meter, progress)
                return meter.finish()
        finally:
            self._renderer.close()
            logger.close()

    def _measure(self, loader: Loader, meter: Meter, progress: Progress) -> None:
        model, checks = self._model.eval(), StepChecks(self._model)
        precision = MixedPrecision(self._options.compute.precision, self._device)
        self._renderer.start(progress)
        meter.begin()
        batches = meter.watch(iterate_on_device(loader, self._device))
        for iteration, batch in enumerate(batches, start=1):
            with precision.autocast():
                item = model.valid_step(batch)  # in `map`, its StopIteration would end the loop
            item = checks.check_valid_step(item)
            meter.measure(item, iteration, 0.0)
            progress.batch, progress.items = iteration, progress.items + item.size
            self._renderer.step(progress)


@contextmanager
def keep_modes(model: Any) -> Iterator[None]:
    """Restore the mode of each module of *model* after the block: a hook may evaluate within an epoch."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def find_tag(name: str) -> str:
    """Return the name of the folder of the evaluation *name*. Raises `BuilderError` if it cannot be one."""
    tag = re.sub(r"\s+", "-", name.strip().lower())
    if not tag or tag.startswith(".") or "/" in tag or "\0" in tag:
        raise BuilderError(
            f"eval({name!r}): the name is also that of a folder; use letters and digits, without /"
        )
    return tag


def confusion_cells(run: Learner, loader: Any, seed: int) -> Sequence[tuple[int, ...]]:
    """Return the cells to show of the confusion matrix of *run* over *loader*; none if it cannot be computed.

    Without a loader, or if the run was asked to stop, the result is empty. If the parameters are sharded, all
    ranks must call it. Any error, also of the user's model, is logged as a warning: a plot must not fail the
    run that it shows.
    """
    if loader is None or _should_stop(run):
        return []
    try:
        set_loader_epoch(loader, run.epoch, seed)  # a run that only had to be published opened no loader
        with run.compute_settings(), run.apply_average():
            matrix = confusion_matrix(
                run.model, loader, seed=seed, should_stop=partial(_should_stop, run), autocast=run.autocast
            )
        return select_cells(matrix.cells(), matrix.classes) if matrix else []
    except Exception as error:  # noqa: BLE001  the results of the training are worth more than a plot
        log.warning(
            "the confusion matrix cannot be computed: %r. The results of the training are not affected", error
        )
        return []


def _should_stop(run: Learner) -> bool:
    """Return whether to stop; if the parameters are sharded, all ranks stop after the same batch."""
    components = run.components
    return components.group.any(run.interrupted) if components.state.is_sharded else run.interrupted


@torch.no_grad()
def confusion_matrix(
    model: Any,
    loader: Loader,
    *,
    seed: int,
    should_stop: Callable[[], bool],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> ConfusionMatrix | None:
    """Return the confusion matrix of *model* over *loader*, each forward pass in the context *autocast*.

    Return None if the model does not predict one class per sample, or if *should_stop* returns True. Random
    numbers that the model draws depend on *seed* alone.
    """
    seed_generators(seed)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    merged: list[ConfusionMatrix] = []
    recent: list[ConfusionMatrix] = []
    with keep_modes(model), keep_step_log():
        model.eval()
        for batch in iterate_on_device(loader, device):
            with autocast():
                item = model.valid_step(batch)  # in `map`, its StopIteration would end the loop
            if should_stop() or not _is_of_classes(item):
                return None
            recent.append(ConfusionMatrix.from_output(item))
            if len(recent) == MAX_UNMERGED_BATCHES:
                merged, recent = [_add([*merged, _add(recent).merge()])], []
    return _add([*merged, *recent]) if merged or recent else None


def _add(matrices: Sequence[ConfusionMatrix]) -> ConfusionMatrix:
    return reduce(operator.add, matrices)


def _is_of_classes(item: Any) -> bool:
    """Return whether *item* has one class per sample, not per position."""
    if not isinstance(item, ClassificationOutput) or item.output.ndim > 2:
        return False
    if item.targets.is_floating_point() and is_soft(item.targets):
        return False
    return item.targets.ndim == 1 or item.targets.shape == item.output.shape == (item.size, 1)
