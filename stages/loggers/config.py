"""The names of metric loggers in params, and the loggers that they lead to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import PluginError
from stages.contracts.history import Split

if TYPE_CHECKING:
    from stages.contracts.events import MetricLogger

BUILT_IN = {
    "json_lines": "stages.loggers.json_lines:JsonLinesMetricLogger",
    "tensorboard": "stages.loggers.tensorboard:TensorBoardMetricLogger",
    "tsv": "stages.loggers.tsv:TsvMetricLogger",
}
"""The import path of each built-in logger by its name in params."""
PLACES = ("path", "directory")
"""Parameters of a logger of which it receives the place that it writes to, if its signature has one."""

LoggerConfig = Annotated[Use, AfterValidator(plugins.name_validator("logger", BUILT_IN))]


def build_loggers(use: Use, directory: Path) -> "dict[Split, MetricLogger]":
    """Return the logger that *use* names for each split, which writes below *directory*.

    A logger writes to ``<directory>/<kind>/<split>``, plus the attribute ``suffix`` of its class, if any.
    Raises `PluginError` if the name leads to no logger or the arguments do not fit.
    """
    maker = plugins.find("logger", use.kind, BUILT_IN)
    folder = directory / use.kind.rpartition(":")[2]
    loggers: dict[Split, MetricLogger] = {}
    for split in Split:
        place = folder / f"{split}{getattr(maker, 'suffix', '')}"
        arguments = plugins.select_accepted(maker, dict.fromkeys(PLACES, place)) | arguments_of(use)
        loggers[split] = plugins.build("logger", use.kind, maker, arguments)
        if not callable(getattr(loggers[split], "log", None)):
            raise PluginError(
                f"logger {use.kind!r} must have the methods of MetricLogger; found a "
                f"{type(loggers[split]).__name__} without log"
            )
    return loggers
