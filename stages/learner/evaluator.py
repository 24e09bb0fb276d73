"""EvaluatorBuilder and Evaluator: a trained model measured on data sets by name. Burn's of the same names."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from stages.contracts.errors import BuilderError
from stages.contracts.events import Progress, Renderer
from stages.contracts.history import History, Split
from stages.learner import defaults
from stages.learner.batches import Loader, on_device
from stages.learner.builder import AnyMetric
from stages.learner.checks import check_fed, check_model, check_name
from stages.learner.compilation import compile_in_place, unwrap
from stages.learner.devices import find_device
from stages.learner.meter import Meter, Registered
from stages.learner.step_checks import StepChecks
from stages.learner.summary import summary_text


class EvaluatorBuilder:
    """Puts an `Evaluator` together; its logs go to ``<directory>/test/<name>``::

    evaluator = EvaluatorBuilder("artifacts").metrics(AccuracyMetric()).summary().build(model)
    values = evaluator.eval("mnist", loader)
    """

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._metrics: list[Registered] = []
        self._renderer: Renderer | None = None
        self._device: str | torch.device = "auto"
        self._summary = False

    def metrics(self, *metrics: AnyMetric) -> Self:
        """Measure *metrics*, with a row in the summary."""
        return self._register(metrics, numeric=True)

    def metrics_text(self, *metrics: AnyMetric) -> Self:
        """Measure and log *metrics*."""
        return self._register(metrics, numeric=False)

    def _register(self, metrics: Sequence[AnyMetric], *, numeric: bool) -> Self:
        for registered in [Registered(metric, numeric=numeric) for metric in metrics]:
            check_name(registered, self._metrics, "an evaluation")
            self._metrics.append(registered)
        return self

    def renderer(self, renderer: Renderer) -> Self:
        """Show the run with *renderer*."""
        self._renderer = renderer
        return self

    def device(self, device: str | torch.device) -> Self:
        """Measure on this one. Default: the best there is."""
        self._device = device
        return self

    def summary(self) -> Self:
        """Print the table after each evaluation."""
        self._summary = True
        return self

    def build(self, model: Any) -> "Evaluator":
        """Return the evaluator. Raises `BuilderError` for what could not work."""
        model, compilers = unwrap(model)
        check_model(model)
        check_fed(model, {Split.TRAIN: [], Split.VALID: self._metrics})
        renderer = self._renderer or defaults.renderer()
        device = find_device(self._device)
        compile_in_place(model, compilers)
        evaluator = Evaluator(self._directory, model.to(device), list(self._metrics), renderer)
        evaluator.device, evaluator.summary = device, self._summary
        return evaluator


class Evaluator:
    """Measures a model; changes nothing in it."""

    def __init__(
        self, directory: Path, model: Any, metrics: Sequence[Registered], renderer: Renderer
    ) -> None:
        self._directory = directory
        self._model = model
        self._metrics = metrics
        self._renderer = renderer
        self.device = torch.device("cpu")
        """Where the model is."""
        self.summary = False
        """Whether the table is printed after each evaluation."""
        self.tests: dict[str, dict[str, float]] = {}
        """Name to metric to value, of every evaluation so far."""

    @torch.no_grad()
    def eval(self, name: str, loader: Loader) -> dict[str, float]:
        """Every numeric metric over *loader*, logged under ``test/<name>`` (lower case, spaces as ``-``).

        Raises `BuilderError` for a loader with no batches and for a name that is none.
        """
        tag = _tag(name)
        if not len(loader):
            raise BuilderError(f"eval({name!r}): the loader has no batches")
        logger = defaults.evaluation_logger(self._directory / "test" / tag)
        meter = Meter([(each, [logger]) for each in self._metrics], self._renderer, Split.VALID, 1)
        shown = {each.metric.name: each.shown for each in self._metrics}
        progress = Progress(
            1, epoch=1, split=Split.VALID, batches=len(loader), running=meter.running, shown=shown
        )
        progress.latest = meter.latest
        model = self._model.eval()
        checks = StepChecks(model)
        try:
            self._renderer.start(progress)
            for iteration, batch in enumerate(on_device(loader, self.device), start=1):
                item = checks.valid(model.valid_step(batch))  # in `map`, its StopIteration would end the loop
                meter.measure(item, iteration, 0.0)
                progress.batch, progress.items = iteration, progress.items + item.size
                self._renderer.step(progress)
            self.tests[tag] = meter.finish()
        finally:
            self._renderer.close()
            logger.close()
        if self.summary:
            sys.stdout.write(summary_text(History(), model, tests={tag: self.tests[tag]}) + "\n")
        return self.tests[tag]


def _tag(name: str) -> str:
    tag = re.sub(r"\s+", "-", name.strip().lower())
    if not tag or tag.startswith(".") or "/" in tag or "\0" in tag:
        raise BuilderError(f"eval({name!r}): a name of letters and digits is needed, as it names a folder")
    return tag
