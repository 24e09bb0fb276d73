"""Check of the parts and devices that params name, in a separate process.

Only an import shows whether a module can be imported. A user's module may load torch, print, exit or crash,
so it is imported in another process, and only if params name a part that is not built in: `learner check`
itself imports none of them.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.project.metric_check import are_metrics_known, find_metric_mistakes
from pipeline.project.params import Params, read_params
from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import StageError
from stages.data import config as sources
from stages.loggers import config as loggers
from stages.metrics import registry as metrics
from stages.models import config as models
from stages.optim import config as optimizers
from stages.optim import schedules
from stages.system.processes import program_command

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "source": sources.BUILT_IN,
    "dataset": {},
    "model": models.BUILT_IN,
    "optimizer": optimizers.BUILT_IN,
    "schedule": schedules.BUILT_IN,
    "batcher": sources.BATCHERS,
    "augmentation": sources.AUGMENTATIONS,
    "metric": metrics.BUILT_IN,
    "logger": loggers.BUILT_IN,
}
OFFERED = {
    "source": (),
    "dataset": (),
    "model": ("input_shape", "num_classes", "num_outputs", "vocabulary_size"),  # by build-learner
    "batcher": ("mean", "std"),  # by fit
    "logger": loggers.PATH_PARAMETERS,  # by fit
}
"""Arguments that a stage passes to a part in addition to those in params, if it accepts them."""
NEEDS_EXTRA = "stages.metrics.from_torchmetrics:"
"""Beginning of the import path of a metric that needs torchmetrics, which may not be installed."""
END = ["", ""]
"""Last line of a result. A failure after it occurs at exit, and does not affect a run."""
PROGRAM = "from pipeline.project.plugin_check import main; main(sys.argv[1])"


def find_plugin_mistakes(params: Params) -> list[str]:
    """Return a line for each part and device in *params* that cannot be used on this machine."""
    is_certain = not any(_is_uncertain(part, use) for _, part, use in _parts(params))
    if is_certain and not _list_special_devices(params) and are_metrics_known(params):
        return []
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        done = subprocess.run(  # noqa: S603  no shell
            program_command(PROGRAM, str(result)),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
        )
        entries = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
    mistakes = [f"{where}: {mistake}" for where, mistake in entries if mistake]
    if entries[-1:] == [END]:
        return mistakes
    where = entries[-1][0] if entries else "the parts"
    last = done.stderr.strip().rpartition("\n")[2]
    return [
        *mistakes,
        f"{where}: the import ended its process with exit code {done.returncode}: {last}",
    ]


def list_imported_parts(params: Params) -> list[str]:
    """Return the parts in *params* that are imported by their path, such as those of the project."""
    return list(dict.fromkeys(use.kind for _, _, use in _parts(params) if ":" in use.kind))


def main(result: str) -> None:
    """Try each part that params.yaml names, and write a line to the file *result* before and after it."""
    params = read_params()
    with Path(result).open("w", encoding="utf-8") as file:

        def note(where: str, mistake: str) -> None:
            file.write(json.dumps([where, mistake]) + "\n")
            file.flush()

        mistakes: set[str] = set()
        for where, part, use in _parts(params):
            note(where, "")
            mistake = _mistake(part, use)
            note(where, "" if mistake in mistakes else mistake)  # a group repeats those of its optimizer
            mistakes.add(mistake)
        if not any(mistakes):
            for where, mistake in find_metric_mistakes(params):
                note(where, mistake)
        for name in _list_special_devices(params):
            note("fit.device", _device_mistake(name))
        note(*END)


def _parts(params: Params) -> Iterator[tuple[str, str, Use]]:
    """Yield every part in *params* that a user may supply: its key, what it is, and the part."""
    yield from _source_parts(params.load_data.source)
    for part in ("model", "optimizer", "schedule"):
        if isinstance(use := getattr(params.build_learner, part), Use):
            yield f"build_learner.{part}", part, use
    for number, group in enumerate(params.build_learner.parameter_groups):
        if isinstance(use := optimizers.with_options(params.build_learner.optimizer, group.options), Use):
            yield f"build_learner.parameter_groups.{number}", "optimizer", use
    yield "fit.batcher", "batcher", params.fit.batcher
    for number, augmentation in enumerate(params.fit.augment):
        if isinstance(augmentation, Use):
            yield f"fit.augment.{number}", "augmentation", augmentation
    for number, metric in enumerate(params.fit.metrics):
        yield f"fit.metrics.{number}", "metric", metric
    for number, logger in enumerate(params.fit.loggers):
        yield f"fit.loggers.{number}", "logger", logger


def _source_parts(source: sources.Source) -> Iterator[tuple[str, str, Use]]:
    """Yield the part that *source* is or names."""
    if isinstance(source, Use):
        yield "load_data.source", "source", source
    if isinstance(source, sources.TorchDatasets):
        yield "load_data.source.factory", "dataset", source.factory


def _is_uncertain(part: str, use: Use) -> bool:
    """Return whether *use* may fail although params are valid."""
    path = BUILT_IN[part].get(use.kind, "")
    needs_extra = path.startswith(NEEDS_EXTRA) or use.kind in loggers.TRACKERS
    return not path or needs_extra or bool(arguments_of(use))


def _list_special_devices(params: Params) -> list[str]:
    """Return the devices in *params* that not every machine has."""
    device = params.fit.device
    names = [device] if isinstance(device, str) else device
    return [name for name in names if name.partition(":")[0] not in ("auto", "all", "cpu")]


def _mistake(part: str, use: Use) -> str:
    try:
        _try_out(part, use)
    except StageError as error:
        return str(error)
    except SystemExit as error:
        return f"{part} {use.kind!r} cannot be imported: its module calls sys.exit({error.code!r})"
    except Exception as error:  # noqa: BLE001  a user's code may raise anything
        return f"{part} {use.kind!r} cannot be built: {type(error).__name__}: {error}"
    return ""


def _try_out(part: str, use: Use) -> None:
    """Import *use* and check its arguments; build a metric or an augmentation: params have all arguments."""
    if part == "logger" and loggers.is_tracker(use):
        loggers.check_tracker(use)
        return
    if part == "metric":
        import_module("stages.metrics.registry").build_metric(use)
        return
    if part == "augmentation":
        import_module("stages.data.augmentation").build_augmentation(use)
        return
    if part == "optimizer":
        import_module("stages.optim").check_class(use)
        return
    if part == "schedule":
        import_module("stages.optim").check_schedule_class(use)
        return
    maker: Any = plugins.find(part, use.kind, BUILT_IN[part])
    arguments = arguments_of(use)
    if part == "batcher" and not isinstance(maker, type):
        import_module("stages.data.batchers").as_batcher(maker)
        return
    arguments = {**plugins.select_accepted(maker, dict.fromkeys(OFFERED[part])), **arguments}
    plugins.check_arguments(part, use.kind, maker, arguments)


def _device_mistake(name: str) -> str:
    try:
        import_module("stages.devices.compute_settings").find_device(name)
    except StageError as error:
        return str(error)
    return ""
