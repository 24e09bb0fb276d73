"""A stage whose program is the user's own: its run store, the key of which is a hash of its dependencies."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.project.dependencies import guard_deps
from pipeline.project.params import Params, read_params
from pipeline.project.paths import read_paths, runs_root
from pipeline.project.snapshot import Snapshot, check_unchanged, list_paths, resolve_stages, take_snapshot
from pipeline.project.yaml_files import read_definition
from stages import runs
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.printing import print_line
from stages.learner import from_params
from stages.runs.file_names import CHECKPOINT_FOLDER, list_epochs

MAX_ATTEMPTS = 2
"""Calls of the program before damage to the run store is an error."""
Program = Callable[[Params, Mapping[str, Path], Path], None]


def run_custom_stage(name: str, program: Program) -> None:
    """Call *program* with the params, the paths and the folder of a run store, and publish the outputs.

    The program of the stage *name* of dvc.yaml calls this. DVC removes the outputs of a stage before it
    starts, so *program* writes each of them to the folder instead, under the same name: the output
    ``artifacts/metrics.json`` as ``metrics.json``. If an earlier call with the same params and dependencies
    was killed, the folder has what that call wrote, so that a program with checkpoints resumes; the outputs
    of a finished call are published again without a call.

    Raises `ParamsError` if dvc.yaml has no such stage, `StageError` if one of its dependencies is changed
    while it runs or is missing in dvc.yaml, and whatever *program* raises.
    """
    before = take_snapshot(name)
    params, outputs = read_params(), _read_outputs(name)
    entries = _key_entries(before, params)
    with runs.explain_disk_errors(runs_root()), runs.open_store(runs_root(), entries) as store:
        for _ in range(MAX_ATTEMPTS):
            if store.finished is None:
                if saved := list_epochs(store.path / CHECKPOINT_FOLDER):
                    print_line(f"resuming run {store.key} after epoch {saved[-1]}")
                with guard_deps(name, params, run_custom_stage, _find_source(program)):
                    program(params, read_paths(), store.path)
                check_unchanged(before)
                store.finish({"epoch": max(list_epochs(store.path / CHECKPOINT_FOLDER), default=0)})
            if not (problems := runs.publish_results(store, outputs, [])):
                break
            store.restart()
        else:
            raise StageError(f"{store.path}: {', '.join(problems)} changed after {name}. Check the disk")
    runs.prune_after_run(runs_root(), store.key)


def _find_source(program: Program) -> list[Path]:
    """Return the file of *program*, relative to the project, if it is one of the project."""
    code = getattr(inspect.unwrap(program), "__code__", None)
    path = Path(code.co_filename if code else "").absolute()
    return [path.relative_to(Path.cwd())] if code and path.is_relative_to(Path.cwd()) else []


def _key_entries(before: Snapshot, params: Params) -> dict[str, Any]:
    """Return the entries of the key of a run: what DVC compares, and the kinds of the devices."""
    return {
        "stage": before.stage,
        "params": dict(before.params),
        "devices": from_params.device_kinds(params.fit),
        "inputs": {
            path.as_posix(): state.digest or runs.content_hash(path) for path, state in before.files.items()
        },
    }


def _read_outputs(name: str) -> list[Path]:
    """Return the outputs of the stage *name*. Raises `ParamsError` if it has none, or two of one name."""
    stage = resolve_stages(read_definition()).get(name) or {}
    outputs = [Path(path) for path in list_paths(stage, "outs")]
    if not outputs:
        raise ParamsError(f"dvc.yaml has no stage {name!r} with outs. Add it")
    if len({path.name for path in outputs}) < len(outputs):
        raise ParamsError(f"dvc.yaml: two outs of the stage {name!r} have the same name. Rename one of them")
    return outputs
