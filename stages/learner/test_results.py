"""Evaluation of a saved model on the test split of the data, with the params of the run that trained it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages import data, learner, loggers, records
from stages.contracts.text import to_json
from stages.learner import from_params
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelPaths
from stages.system.files import remove, write_text

METRICS_FILE = "metrics.json"
"""The values over the test split, in its directory; null without a test split, which `dvc metrics` skips."""

log = logging.getLogger(__name__)


def write_test_results(
    resolved: Mapping[str, Any], recorder: "records.Recorder", paths: SaveModelPaths
) -> None:
    """Evaluate the model at ``paths.model`` on the test split, and write its logs and metrics.

    *resolved* is the content of config.json, and *recorder* reads the model. Only the metrics file is written
    if there is no test split, and nothing if dvc.yaml has no path for it.
    """
    is_tested = paths.data is not None and "test" in data.read_info(paths.data / data.DATASET_FILE).counts
    if paths.test is None:
        if is_tested:
            log.warning(
                "the model is not evaluated on the test split: dvc.yaml has no vars.paths.test. Add "
                "'test: artifacts/test/split' there, '${paths.learner}' and '${paths.data}' to the deps of "
                "save-model, '${paths.test}' to its outs, and '${paths.test}/metrics.json' to metrics"
            )
        return
    remove(paths.test)
    values = None
    if is_tested and paths.data is not None and paths.learner is not None:
        fit = FitConfig.model_validate(resolved["fit"])
        spec = learner.LearnerSpec.read(paths.learner)
        model, _, _ = spec.build(resolved["build_learner"]["seed"])
        records.load_file(model, paths.model, recorder)
        values = _evaluate(fit, model, paths.data, paths.test)
    write_text(paths.test / METRICS_FILE, to_json({"test": values}) + "\n")


def _evaluate(fit: FitConfig, model: Any, directory: Path, logs: Path) -> dict[str, float]:
    """Return the metrics of *fit* over the test split in *directory*, sorted by name, and write *logs*."""
    info = data.read_info(directory / data.DATASET_FILE)
    loader = from_params.build_test_loader(fit, data.read_split(directory, "test"), info)
    builder = learner.EvaluatorBuilder(logs.parent).metrics(*from_params.build_test_metrics(fit))
    builder = builder.metric_logger(loggers.TestMetricLogger(logs))
    evaluator = from_params.configure_evaluator(fit, builder).build(model)
    return dict(sorted(evaluator.eval("test", loader).items()))
