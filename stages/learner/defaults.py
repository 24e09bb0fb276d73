"""What a learner is handed where nobody hands it anything: file loggers, a log for people, a renderer.

The learner imports neither loggers nor renderers; these are their names, looked up as a user's own would be.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from stages.contracts import plugins
from stages.contracts.events import MetricLogger, Renderer
from stages.contracts.history import Split

FILE_LOGGER = "stages.loggers:FileMetricLogger"
TEST_LOGGER = "stages.loggers:TestMetricLogger"
APPLICATION_LOG = "stages.loggers:ExperimentLog"
RENDERER = "stages.renderers:default_renderer"


def renderer() -> Renderer:
    """The live view on a terminal, a line an epoch elsewhere, or what ``LEARNER_RENDERER`` says."""
    chosen: Renderer = plugins.find("renderer", RENDERER, {})()
    return chosen


def file_loggers(directory: Path) -> dict[Split, list[MetricLogger]]:
    """Burn's log files, in a folder a split below *directory*."""
    file_logger = plugins.find("logger", FILE_LOGGER, {})
    return {split: [file_logger(directory / split)] for split in Split}


def evaluation_logger(directory: Path) -> MetricLogger:
    """Burn's log files of an evaluation, in *directory* itself."""
    logger: MetricLogger = plugins.find("logger", TEST_LOGGER, {})(directory)
    return logger


def application_log(path: Path) -> AbstractContextManager[object]:
    """All log records from INFO on, appended to *path* for as long as it is entered."""
    log: AbstractContextManager[object] = plugins.find("logger", APPLICATION_LOG, {})(path)
    return log
