"""Metric loggers by their names in params."""

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
    "json_lines": "stages.loggers.tables:JsonLinesMetricLogger",
    "tensorboard": "stages.loggers.event_files:TensorBoardMetricLogger",
    "tsv": "stages.loggers.tables:TsvMetricLogger",
}
"""The import path of each built-in logger by its name in params."""
PATH_PARAMETERS = ("path", "directory")
"""Parameters of a logger that receive the path to write to, if its signature has them."""

LoggerConfig = Annotated[Use, AfterValidator(plugins.name_validator("logger", BUILT_IN))]


def build_loggers(use: Use, directory: Path) -> "dict[Split, MetricLogger]":
    """Return one logger per split of the kind that *use* names; they write below *directory*.

    The path of a logger is ``<directory>/<kind>/<split>``, plus the attribute ``suffix`` of its class, if
    any. Raises `PluginError` if the name cannot be resolved, the arguments do not fit, or the object built
    has no method ``log``.
    """
    maker = plugins.find("logger", use.kind, BUILT_IN)
    folder = directory / use.kind.rpartition(":")[2]
    loggers: dict[Split, MetricLogger] = {}
    for split in Split:
        path = folder / f"{split}{getattr(maker, 'suffix', '')}"
        arguments = plugins.select_accepted(maker, dict.fromkeys(PATH_PARAMETERS, path)) | arguments_of(use)
        loggers[split] = plugins.build("logger", use.kind, maker, arguments)
        if not callable(getattr(loggers[split], "log", None)):
            raise PluginError(
                f"logger {use.kind!r} must have the methods of MetricLogger; found a "
                f"{type(loggers[split]).__name__} without log"
            )
    return loggers
