"""Metric loggers by their names in params."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import PluginError
from stages.contracts.history import Split
from stages.contracts.plugins import check_extra
from stages.loggers.tracking import RunDescription, TrackerProcess, send_pending

if TYPE_CHECKING:
    from stages.contracts.events import MetricLogger

TRACKERS = {
    "mlflow": "stages.loggers.trackers:MlflowTracker",
    "wandb": "stages.loggers.trackers:WandbTracker",
}
"""The import path of each built-in tracker."""
BUILT_IN = {
    "json_lines": "stages.loggers.tables:JsonLinesMetricLogger",
    "tensorboard": "stages.loggers.event_files:TensorBoardMetricLogger",
    "tsv": "stages.loggers.tables:TsvMetricLogger",
    **TRACKERS,
}
"""The import path of each built-in logger by its name in params."""
PATH_PARAMETERS = ("path", "directory")
"""Parameters of a logger that receive the path to write to, if its signature has them."""

PROCESS_OPTIONS = ("interval_seconds", "wait_seconds")
"""Arguments of a tracker in params that `TrackerProcess` takes."""

LoggerConfig = Annotated[Use, AfterValidator(plugins.name_validator("logger", BUILT_IN))]


def is_tracker(use: Use) -> bool:
    """Return whether *use* names a tracker: a class with the methods of `stages.loggers.tracking.Tracker`.

    Raises `PluginError` if the name cannot be resolved.
    """
    maker = plugins.find("logger", use.kind, BUILT_IN)
    return isinstance(maker, type) and all(hasattr(maker, name) for name in ("start", "log", "finish"))


def build_tracker(use: Use, directory: Path, run: RunDescription) -> TrackerProcess:
    """Return the renderer that passes *run* to the tracker that *use* names, whose files are in *directory*.

    The directory is ``<directory>/<kind>``. Raises `PluginError` if the arguments do not fit, or if the
    extra of the tracker is not installed.
    """
    arguments, options = check_tracker(use)
    path = plugins.import_path("logger", use.kind, BUILT_IN)
    folder = directory / use.kind.rpartition(":")[2]
    return TrackerProcess(path, folder, run, arguments=arguments, samples=directory.parent, **options)


def send_pending_events(uses: Sequence[Use], directory: Path) -> str:
    """Send what a tracker has not received of the run in *directory*, and return the error, if any.

    *uses* are loggers; that of the tracker is the one after which the folder is named, which may have a
    number at its end. Raises `PluginError` as `build_tracker` does.
    """
    matching = [
        use
        for use in uses
        if re.fullmatch(rf"{re.escape(use.kind.rpartition(':')[2])}(-\d+)?", directory.name)
    ]
    if not matching:
        return f"fit.loggers has no {directory.name}. Add it, with its arguments"
    arguments, _ = check_tracker(matching[0])
    return send_pending(plugins.import_path("logger", matching[0].kind, BUILT_IN), directory, arguments)


def check_tracker(use: Use) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the tracker in *use*, and those of `TrackerProcess`.

    Raises `PluginError` as `build_tracker` does.
    """
    maker, arguments = plugins.find("logger", use.kind, BUILT_IN), arguments_of(use)
    options = {name: arguments.pop(name) for name in PROCESS_OPTIONS if name in arguments}
    plugins.check_arguments("logger", use.kind, maker, {"directory": None, **arguments})
    for name, value in options.items():
        if not isinstance(value, int | float) or not value > 0:
            raise PluginError(f"logger {use.kind!r}: {name} must be above 0; found {value!r}")
    if use.kind in TRACKERS:
        check_extra(use.kind, use.kind, f"the logger {use.kind}")
    return arguments, options


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
        if not hasattr(loggers[split], "log"):
            raise PluginError(
                f"logger {use.kind!r} must have the methods of MetricLogger; found a "
                f"{type(loggers[split]).__name__} without log"
            )
    return loggers
