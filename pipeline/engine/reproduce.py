"""Reproduction of one stage by DVC's own engine, in this process.

DVC decides whether the stage must run, removes its outputs, reads the run-cache, commits and writes dvc.lock.
Only the body is ours: DVC calls a function instead of starting ``cmd`` (see `pipeline.engine.dvc_patches`).
The reasons for which a stage is out of date are each file, param and version that differs from dvc.lock.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage.serialize import to_single_stage_lockfile
from dvc_objects.fs.generic import test_links
from voluptuous import Invalid

from pipeline.engine import dvc_patches
from pipeline.engine.dvc_patches import StageCall, replace_command
from pipeline.engine.error_reports import VERBOSE_VARIABLE
from pipeline.engine.signals import defer_signals
from pipeline.engine.stage_run import run_stage
from pipeline.project.inputs import find_missing_files
from pipeline.project.lockfile import (
    LOCKFILE,
    back_up_lockfile,
    check_lockfile,
    read_lockfile,
    repair_lockfiles,
)
from pipeline.project.paths import check_path
from pipeline.project.revisions.dvc_checks import remove_damaged_output
from pipeline.project.snapshot import list_folder, read_folder_list
from pipeline.project.versions import VERSIONS, version_of
from pipeline.project.yaml_files import read_definition, stages_of
from stages.contracts.errors import ParamsError, StageFailedError
from stages.contracts.printing import print_line
from stages.contracts.text import join_names
from stages.runs.key import differences
from stages.system.files import parse_file_list

log = logging.getLogger(__name__)
Entry = Mapping[str, Any]
"""The entry of a stage in dvc.lock."""
MAX_NAMED_FILES = 3
"""Files of a folder that a reason names."""
MAX_REASONS = 6
"""Reasons that one line names."""


class Outcome(StrEnum):
    """The outcome of the reproduction of a stage."""

    RAN = "ran"
    UNCHANGED = "unchanged"
    RESTORED = "restored from the run-cache"


def select_stages(targets: Sequence[str], *, downstream: bool = False) -> list[str]:
    """Return *targets* and the stages that they depend on, in order; without targets, all stages.

    With *downstream*, return *targets* and the stages that depend on them. Raises `ParamsError` for a name
    that no stage has, and for *downstream* without targets.
    """
    for name in targets:
        version_of(name)
    if not targets:
        if downstream:
            raise ParamsError("--downstream begins at a stage: name one, for example fit")
        return list(VERSIONS)
    try:
        with Repo() as repo:
            graph = repo.index.graph  # an edge leads from a stage to a dependency of it
            neighbors = graph.predecessors if downstream else graph.successors
            selected = [stage for stage in graph if getattr(stage, "name", None) in targets]
            for stage in selected:
                selected += [other for other in neighbors(stage) if other not in selected]
            names = {getattr(stage, "name", None) for stage in selected}
    except DvcException as error:
        raise StageFailedError(str(error)) from error
    return [name for name in VERSIONS if name in names]


def reproduce(name: str, *, run: Callable[[str], None] = run_stage, force: bool = False) -> Outcome:
    """Reproduce stage *name* of the project in the current folder, and no other stage.

    With *force*, the stage runs although its dependencies are unchanged. If the stage must run, call *run*
    with the name. A signal interrupts that call. A signal that arrives while DVC itself works is deferred
    until DVC has released its locks and completed its files.

    Raises the error of *run*, after the previous outputs are restored, and `StageFailedError` if DVC fails.
    """
    dvc_patches.apply()
    with defer_signals() as signals:
        call = StageCall(run, signals)
        with _restore_on_error(name, call), replace_command(call):
            repair_lockfiles()
            check_lockfile(LOCKFILE)
            back_up_lockfile()
            before = _read_locked(name)
            call.announce = lambda stage: _print_reasons(name, before, to_single_stage_lockfile(stage))
            with _log_warnings_only(), Repo() as repo:
                check_path(Path(repo.cache.local_cache_dir))
                _check_links(repo)
                is_reproduced = bool(repo.reproduce(name, single_item=True, force=force))
    if not is_reproduced:
        return Outcome.UNCHANGED
    if call.has_started:
        return Outcome.RAN
    _print_reasons(name, before, _read_locked(name) or {})
    return Outcome.RESTORED


def _check_links(repo: Repo) -> None:
    """Raise `StageFailedError` before a stage runs if DVC cannot link its outputs to the cache afterwards."""
    cache = repo.cache.local
    kinds = cache.cache_types
    if "copy" in kinds or test_links(kinds, cache.fs, cache.path, repo.fs, f"{repo.tmp_dir}{os.sep}links"):
        return
    raise StageFailedError(
        f"cache.type is {','.join(kinds)}, and the cache {repo.cache.local_cache_dir} and the folder "
        f"{repo.root_dir} permit no such links. Run `dvc config --local cache.type {','.join(kinds)},copy`"
    )


def explain_stage(repo: Repo, name: str) -> list[str]:
    """Return each reason for which the stage *name* of *repo* is out of date; empty if it is up to date."""
    before = _read_locked(name)
    if before is None:
        return ["dvc.lock has no run of it"]
    stage = repo.stage.load_one(name=name)
    outputs = [f"{path} {status}" for output in stage.outs for path, status in output.status().items()]
    missing = [f"{dependency} is missing" for dependency in stage.deps if not dependency.exists]
    stage.save_deps(allow_missing=True)
    return [*list_reasons(before, to_single_stage_lockfile(stage)), *missing, *outputs]


def _read_locked(name: str) -> dict[str, Any] | None:
    return stages_of(read_lockfile(LOCKFILE)).get(name)


def _print_reasons(name: str, before: dict[str, Any] | None, after: Mapping[str, Any]) -> None:
    """Print why the stage *name* is not up to date: its entries in dvc.lock *before* and *after* its run."""
    if before and (reasons := list_reasons(before, after)):
        print_line(f"{name} is out of date: {describe_reasons(reasons)}")


def list_reasons(before: Entry, after: Entry) -> list[str]:
    """Return what differs in the command, the params and the deps of two entries of dvc.lock for a stage."""
    command = ["the command changed"] if before.get("cmd") != after.get("cmd") else []
    return [*command, *_list_params(before, after), *_list_files(before, after)]


def describe_reasons(reasons: list[str]) -> str:
    """Return *reasons* in one line."""
    more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    return "; ".join(reasons[:MAX_REASONS]) + more


def _list_params(before: Entry, after: Entry) -> Iterator[str]:
    """Yield a reason for each param that differs, with both values."""
    sides = [entry.get("params") or {} for entry in (before, after)]
    for file in {**sides[0], **sides[1]}:
        for line in differences(*(side.get(file) or {} for side in sides)):
            yield line if file == "params.yaml" else f"{file}: {line}"


def _list_files(before: Entry, after: Entry) -> Iterator[str]:
    old, new = ({dep["path"]: dep for dep in entry.get("deps") or []} for entry in (before, after))
    for path in sorted({*old, *new}):
        if path not in old:
            yield f"{path} is a new dependency"
        elif path not in new:
            yield f"{path} was a dependency"
        elif old[path] != new[path]:
            yield f"{_name_files(path, str(old[path].get('md5')))} changed"


def _name_files(path: str, oid: str) -> str:
    """Return the names of the files in the folder *path* that differ from those with the hash *oid*.

    Return *path* if it is a file, or if the files that it had are unknown.
    """
    before = read_folder_list(oid)
    now = list_folder(Path(path)) if before else None
    if before is None or now is None:
        return path
    files = parse_file_list(now.encode(), path)
    names = sorted(name for name in {*before, *files} if before.get(name) != files.get(name))
    return join_names([f"{path}/{name}" for name in names], MAX_NAMED_FILES) if names else path


@contextmanager
def _restore_on_error(name: str, call: StageCall) -> Iterator[None]:
    """Restore the outputs of stage *name* if the block raises after *call*; raise the cause."""
    try:
        yield
    except BaseException as error:
        if call.has_started:
            restore_outputs(name)
        if isinstance(error, DvcException):
            cause = find_cause(error)
            if isinstance(cause, FileNotFoundError) and not call.has_started:
                path = str(cause.filename).removeprefix(f"{Path.cwd()}{os.sep}")
                written = (
                    f"dvc.yaml: {name}: the dependency {path} does not exist. "
                    f"Run `dvc repro {quote(name)}`, which also runs the stage that writes it"
                )
                missing = find_missing_files(read_definition())
                raise StageFailedError(missing.get((name, Path(path)), written)) from error
            raise cause from (cause.__cause__ or error)
        raise


def restore_outputs(name: str) -> None:
    """Restore the outputs of the last finished run of stage *name* from the cache, as far as they are intact.

    DVC removes the outputs of a stage before it runs, and a run that fails must not lose the previous ones.
    Outputs that cannot be restored are logged as a warning, since the caller already reports an error.
    """
    missing: list[str] = []
    try:
        with defer_signals(), Repo() as repo:
            outputs = repo.stage.load_one(name=name).outs
            missing = [str(output) for output in outputs if output.hash_info]
            for output in outputs:
                remove_damaged_output(output)
                if output.hash_info and not output.changed_cache():
                    output.checkout(force=True)
                    missing.remove(str(output))
    except Exception as error:  # noqa: BLE001  no error of DVC may hide the first error
        log.warning(
            "the previous %s could not be restored (%s). When the cause is fixed, run: dvc checkout %s",
            ", ".join(missing) or f"outputs of {name}",
            _reason(error),
            " ".join(missing) or name,
        )


def _reason(error: BaseException) -> str:
    """Return the operating system's message behind *error*, or else the message of *error*."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def find_cause(error: BaseException) -> BaseException:
    """Return the project's or the user's error behind DVC's *error*, or else DVC's messages as one error."""
    messages, cause = [], error
    while cause is not None:
        if not isinstance(cause, DvcException):
            return cause
        messages.append(str(cause))
        is_invalid_file = isinstance(cause.__cause__, Invalid)  # a file of DVC's own that it cannot read
        if cause.__cause__ is None or is_invalid_file:
            break
        cause = cause.__cause__
    return StageFailedError(": ".join(messages))


@contextmanager
def _log_warnings_only() -> Iterator[None]:
    """Have DVC log warnings and errors only; the caller reports the outcome."""
    logger = logging.getLogger("dvc")
    before = logger.level
    if not os.environ.get(VERBOSE_VARIABLE):
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
