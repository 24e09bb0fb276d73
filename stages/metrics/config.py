"""Metrics, as params say them."""

from typing import Annotated

from pydantic import AfterValidator

from stages.contracts.config import Use
from stages.contracts.plugins import known_as

BUILT_IN = {
    "accuracy": "stages.metrics.accuracy:AccuracyMetric",
    "loss": "stages.metrics.loss:LossMetric",
}

MetricConfig = Annotated[Use, AfterValidator(known_as("metric", BUILT_IN))]
