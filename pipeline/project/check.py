"""Checks of params: against dvc.yaml and the data, and of the parts and devices that they name.

Only an import shows whether a part can be imported. A user's module may load torch, print, exit or crash, so
it is imported in another process, and only if params name a part that is not built in: `learner check`
itself imports none of them.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel

from pipeline.project.inputs import list_values
from pipeline.project.params import (
    PARAMS,
    Params,
    are_metrics_known,
    build_params_error,
    describe_mistake,
    find_metric_mistakes,
    list_conflicts,
    read_params,
)
from pipeline.project.paths import parse_paths
from pipeline.project.run_cache import IGNORED_KEYS, drop_ignored
from pipeline.project.snapshot import ABSENT, list_paths, list_tracked_params, look_up, resolve_stages
from pipeline.project.versions import VERSIONS
from pipeline.project.yaml_files import read_definition, read_yaml, stages_of
from stages import learner
from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of, flatten
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.text import join_names
from stages.data import config as sources
from stages.loggers import config as loggers
from stages.metrics import registry as metrics
from stages.models import config as models
from stages.optim import config as optimizers
from stages.optim import schedules
from stages.params.fit_params import CHANGES_NO_NUMBER, HOOKS
from stages.system.processes import program_command

FIRST_STAGE = next(iter(VERSIONS))
MAX_LISTED_KEYS = 3
"""Keys without an entry in dvc.yaml that a line names."""
BUILT_IN_PARTS: Mapping[str, Mapping[str, str]] = {
    "source": sources.BUILT_IN,
    "dataset": {},
    "model": models.BUILT_IN,
    "optimizer": optimizers.BUILT_IN,
    "schedule": schedules.BUILT_IN,
    "batcher": sources.BATCHERS,
    "augmentation": sources.AUGMENTATIONS,
    "hook": HOOKS,
    "metric": metrics.BUILT_IN,
    "logger": loggers.BUILT_IN,
}
TESTS = {
    "hook": "stages.learner.from_params:build_hook",
    "metric": "stages.metrics.registry:build_metric",
    "augmentation": "stages.data.augmentation:build_augmentation",
    "optimizer": "stages.optim:check_class",
    "schedule": "stages.optim:check_schedule_class",
}
"""The functions that build or check a part, all of whose arguments params have."""
PARTS = {
    "augment": "augmentation",
    "batcher": "batcher",
    "factory": "dataset",
    "hooks": "hook",
    "loggers": "logger",
    "metrics": "metric",
    "model": "model",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "source": "source",
}
"""What each field of params is that may have a part of the user."""
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
PROGRAM = (
    "from pipeline.project.check import main; main(sys.argv[1]); "
    "from stages.system.processes import end_process; end_process(0)"
)


def check_params(params: Params) -> None:
    """Raise `ParamsError` with a line for each mistake that would fail a run after its first stage."""
    if mistakes := find_late_mistakes(params, read_yaml(PARAMS), read_definition()):
        raise build_params_error(PARAMS, mistakes)


def find_late_mistakes(
    params: Params, content: Mapping[str, Any], definition: Mapping[str, Any]
) -> list[str]:
    """Return a line for each mistake that the first stages would not detect.

    *content* is that of params.yaml, from which *params* were read, and *definition* that of dvc.yaml.
    """
    lines = [
        f"{key}: the key is missing, and the stage {stage} in dvc.yaml tracks it. Add "
        + ("the key" if "." in key else f"'{key}: {{}}' for its defaults")
        for stage, entry in stages_of(definition).items()
        for key in _list_tracked(entry)
        if key and "${" not in key and look_up(content, key) is ABSENT
    ]
    model = parse_paths(definition, "dvc.yaml").get("model")
    if model is not None:
        lines.append(describe_mistake(params.save_model.check_suffix, model))
    lines.append(describe_mistake(params.save_model.check_packages))
    return [
        *filter(None, lines),
        *_find_untracked_params(content, definition),
        *_find_missing_test_entries(params, definition),
        *_find_unsafe_keys(content, definition),
        *list_conflicts(params),
    ]


def _find_untracked_params(content: Mapping[str, Any], definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each stage in *definition* that reads params without tracking them.

    *content* is that of params.yaml. A stage need not track keys that change no number.
    """
    for stage, entry in resolve_stages(definition).items():
        if stage not in VERSIONS or is_custom(stage, definition):
            continue
        section = stage.replace("-", "_")
        is_first = stage == FIRST_STAGE  # it writes all params
        tracked = _list_tracked(entry)
        keys = [
            key
            for key in flatten(content if is_first else {section: content.get(section)})
            if not any(f"{key}.".startswith(name and f"{name}.") for name in tracked)
            and key.removeprefix("fit.").partition(".")[0] not in CHANGES_NO_NUMBER
        ]
        if keys:
            yield (
                f"{join_names(keys, MAX_LISTED_KEYS)}: {stage} in dvc.yaml does not track this, so an edit "
                f"would not rerun it. Add '{f'{PARAMS}:' if is_first else section}' to its params"
            )


def _list_tracked(entry: Mapping[str, Any]) -> list[str]:
    """Return the keys of params.yaml that *entry*, a stage of dvc.yaml, tracks; an empty text for all."""
    return [key for file, key in list_tracked_params(entry) if file == str(PARAMS)]


def _find_missing_test_entries(params: Params, definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if params set a test split and dvc.yaml lacks an entry with which the model is tested."""
    stage = resolve_stages(definition).get("save-model")
    if not params.load_data.test_fraction or stage is None:
        return
    paths = dict(parse_paths(definition, "dvc.yaml"))
    needed = (("deps", "learner"), ("deps", "data"), ("outs", "test"))
    if not all(str(paths.get(name)) in list_paths(stage, kind) for kind, name in needed):
        yield (
            "load_data.test_fraction: dvc.yaml lacks entries with which save-model tests the model. Add "
            "'test: artifacts/test/split' to vars.paths, '${paths.learner}' and '${paths.data}' to the deps "
            "of save-model, '${paths.test}' to its outs, and '${paths.test}/metrics.json' to metrics, as far "
            "as they are missing"
        )


def _find_unsafe_keys(content: Mapping[str, Any], definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if *content* has keys that the run-cache ignores, and stale entries are not removed."""
    keys = [
        key
        for key, value in flatten(content).items()
        if IGNORED_KEYS.intersection(key.split(".")) or value != drop_ignored(value)
    ]
    stage = resolve_stages(definition).get(FIRST_STAGE, {})
    entries = [entry for entry in stage.get("outs") or [] if isinstance(entry, Mapping)]
    if keys and not any(options.get("persist") for entry in entries for options in entry.values()):
        yield (
            f"{join_names(keys, MAX_LISTED_KEYS)}: DVC's run-cache ignores keys of this name, so it restores "
            "outputs of another value. Add 'persist: true' to ${paths.config} in the outs of "
            f"{FIRST_STAGE} in dvc.yaml"
        )


def check_stages(definition: Mapping[str, Any]) -> None:
    """Raise `ParamsError` if *definition*, that of dvc.yaml, lacks one of the five stages or replaces it."""
    commands = {name: stage.get("cmd") for name, stage in stages_of(definition).items()}
    lacking = [name for name in VERSIONS if name not in commands]
    replaced = [name for name in VERSIONS if name in commands and is_custom(name, definition)]
    problems = [
        *([f"no stage {', '.join(lacking)}"] if lacking else []),
        *(f"a program of its own in the stage {name}, {commands[name]!r}" for name in replaced),
    ]
    if problems:
        raise ParamsError(
            f"dvc.yaml has {' and '.join(problems)}, and this command runs the five stages of "
            "learner-pipeline only. Run `dvc repro` or `dvc exp run`"
        )


def is_custom(name: str, definition: Mapping[str, Any]) -> bool:
    """Return whether the command of the stage *name* of dvc.yaml is not that of ours."""
    return f" stage {name}" not in str(definition["stages"][name].get("cmd"))


def read_spec(directory: Path, params: Params) -> "learner.LearnerSpec":
    """Return the ``learner.json`` in *directory*, which may come from a remote.

    Raises `CheckpointError` if it names code that is neither built in nor named in build_learner of *params*.
    """
    spec = learner.LearnerSpec.read(directory)
    remedy = (
        "Its code is run only if build_learner in params.yaml names it too. Read that code, and add it there "
        "if you trust it"
    )
    spec.check_code(list_values(params.build_learner), remedy)
    return spec


def find_plugin_mistakes(params: Params) -> list[str]:
    """Return a line for each part and device in *params* that cannot be used on this machine."""
    is_certain = not any(_is_uncertain(part, use) for _, part, use in _parts(params))
    if is_certain and not _list_special_devices(params) and are_metrics_known(params):
        return []
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        done = run_program(PROGRAM, str(result))
        entries = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
    mistakes = [f"{where}: {mistake}" for where, mistake in entries if mistake]
    if entries[-1:] == [END]:
        return mistakes
    where = entries[-1][0] if entries else "the parts"
    last = done.stderr.strip().rpartition("\n")[2]
    return [*mistakes, f"{where}: the import ended its process with exit code {done.returncode}: {last}"]


def run_program(
    program: str, *arguments: str, timeout_seconds: float | None = None, folder: Path = Path()
) -> subprocess.CompletedProcess[str]:
    """Run the Python *program* in another process, in *folder*. Raises `subprocess.TimeoutExpired`."""
    return subprocess.run(  # noqa: S603  no shell
        program_command(program, *arguments),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_seconds,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,  # a question for a password gets no answer
    )


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
            find_device = resolve_name("stages.devices.compute_settings:find_device")
            note("fit.device", describe_mistake(find_device, name))
        note(*END)


def _parts(params: Params) -> Iterator[tuple[str, str, Use]]:
    """Yield every part in *params* that a user may supply: its key, what it is, and the part."""
    for section in ("load_data", "build_learner", "fit"):
        yield from _parts_of(dict(params)[section], f"{section}.")
    for number, group in enumerate(params.build_learner.parameter_groups):
        if isinstance(use := group.choose_config(params.build_learner.optimizer), Use):
            yield f"build_learner.parameter_groups.{number}", "optimizer", use


def _parts_of(config: BaseModel, prefix: str) -> Iterator[tuple[str, str, Use]]:
    for name, value in config:
        items = (
            {f".{number}": item for number, item in enumerate(value)}
            if isinstance(value, tuple)
            else {"": value}
        )
        for number, item in items.items():
            if name in PARTS and isinstance(item, Use):
                yield f"{prefix}{name}{number}", PARTS[name], item
            elif name in PARTS and isinstance(item, sources.TorchDatasets):
                yield from _parts_of(item, f"{prefix}{name}.")


def _is_uncertain(part: str, use: Use) -> bool:
    """Return whether *use* may fail although params are valid."""
    path = BUILT_IN_PARTS[part].get(use.kind, "")
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
    """Import *use* and check its arguments; build a metric or an augmentation: params have all arguments.

    A built-in batcher is built if params have its divisor.
    """
    if part == "logger" and loggers.is_tracker(use):
        loggers.check_tracker(use)
        return
    if part in TESTS:
        resolve_name(TESTS[part])(use)
        return
    maker: Any = plugins.find(part, use.kind, BUILT_IN_PARTS[part])
    arguments = arguments_of(use)
    if part == "batcher" and not isinstance(maker, type):
        import_module("stages.data.batchers").as_batcher(maker)
        return
    arguments = {**plugins.select_accepted(maker, dict.fromkeys(OFFERED[part])), **arguments}
    plugins.check_arguments(part, use.kind, maker, arguments)
    divisor = arguments.get("std")
    if use.kind in sources.BATCHERS and divisor is not None:
        mean = arguments["mean"]  # None: that of the data, which has the same shape
        maker(**{**arguments, "mean": divisor if mean is None else mean})
