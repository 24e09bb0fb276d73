from .accuracy import AccuracyMetric as AccuracyMetric
from .config import MetricConfig as MetricConfig
from .find import build_metric as build_metric
from .loss import LossMetric as LossMetric
from .mean import Mean as Mean
from .mean import Metric as Metric
