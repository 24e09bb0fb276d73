"""The commands about a project: ``learner init``, ``check``, ``params``, ``versions`` and ``status``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.options import AsJson, flag, print_json
from stages.contracts.errors import ParamsError
from stages.contracts.printing import print_error, print_line, print_text


def check(
    *,
    no_import: Annotated[
        bool, flag("--no-import", "Import no module of the project, and do not check the parts in it.")
    ] = False,
    fix: Annotated[bool, flag("--fix", "Add the missing deps to dvc.yaml.")] = False,
) -> None:
    """Check params.yaml, the parts and data it names, and the deps in dvc.yaml.

    Deps must have the modules that params.yaml names, what they import, also in functions, and the data.
    Parts of the project that params.yaml names are imported, which runs the code of their modules.

    Exit with code 1 if dvc.yaml lacks a dependency, and with code 2 if params.yaml is not valid.

    Example: learner check --fix
    """
    from pipeline.project.check import (
        find_late_mistakes,
        find_missing_data,
        find_outside_data,
        find_plugin_mistakes,
        list_imported_parts,
    )
    from pipeline.project.dependencies import find_missing_deps, fix_deps
    from pipeline.project.params import PARAMS, build_params_error, read_params
    from pipeline.project.paths import read_paths
    from pipeline.project.training_check import describe_schedule
    from pipeline.project.versions import find_stale_versions
    from pipeline.project.yaml_files import read_definition, read_yaml

    params = read_params()
    for line in [*(fix_deps(params) if fix else ()), *describe_schedule(params, read_paths()["dataset"])]:
        print_text(line)
    mistakes = [
        *find_late_mistakes(params, read_yaml(PARAMS), read_definition()),
        *find_missing_data(params),
    ]
    if not no_import:
        if parts := list_imported_parts(params):
            print_error(f"importing {', '.join(parts)}, as a run does; --no-import leaves this out")
        mistakes += find_plugin_mistakes(params)
    missing = [*find_missing_deps(params), *find_stale_versions()]
    for line in missing:
        print_text(line)
    if mistakes:
        raise build_params_error(PARAMS, mistakes)
    if missing:
        raise typer.Exit(1)
    print_text("params.yaml is valid")
    for line in find_outside_data(params, read_definition()):
        print_text(line)
    if params.save_model.note:
        print_text(params.save_model.note)


def params(*, as_json: AsJson = False) -> None:
    """Print all params with their values, and which of them are defaults that params.yaml does not set.

    The page stages/params/reference.md describes each.

    Example: learner params --json
    """
    from pipeline.project.params import list_params

    listed = list(list_params())
    if as_json:
        print_json({key: {"value": value, "is_default": not is_set} for key, value, is_set in listed})
        return
    for key, value, is_set in listed:
        print_line(f"{key}: {json.dumps(value)}{'' if is_set else '  # default'}")


def versions() -> None:
    """Write the versions of the installed stages to versions.yaml.

    DVC reads that file in a project that `learner init` created. Run this after an upgrade of
    learner-pipeline; `dvc repro` then runs the stages whose version changed.

    Example: learner versions
    """
    from pipeline.project.versions import update_versions

    for line in update_versions() or ["versions.yaml is up to date"]:
        print_text(line)


def init(
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]",
            help="Folder of the project, created if missing; `.` for this one.",
            show_default="print the templates",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model and data to begin with; `learner init` prints the names.",
            show_default="minimal",
        ),
    ] = None,
) -> None:
    """Create a project for your own model and data, and commit it.

    Existing files are never overwritten. Without DIR, the command prints the templates.

    Example: learner init my-project --template digits
    """
    from pipeline.scaffold.new_project import DEFAULT_TEMPLATE, describe_templates, make_project

    if directory is None and template is not None:
        raise ParamsError(f"no folder. Run: learner init DIR --template {template}")
    if directory is not None and not directory.strip():
        raise ParamsError(f"{directory!r} names no folder. Name one, or pass . for this folder")
    lines = make_project(Path(directory), template or DEFAULT_TEMPLATE) if directory else describe_templates()
    for line in lines:
        print_text(line)


def status(
    *,
    why: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="Print each file, param and version that makes this stage out of date, and nothing else.",
            show_default="all stages",
        ),
    ] = None,
) -> None:
    """Print the state of each stage, what changed in stages that are out of date, and all runs.

    Example: learner status --why fit
    """
    for line in status_lines() if why is None else explain_stage(why):
        print_line(line)


def explain_stage(name: str) -> list[str]:
    """Return a line for each reason for which the stage *name* is out of date."""
    from pipeline.engine.reproduce import explain_stage as list_reasons
    from stages.contracts.errors import closest

    names = list(_read_files().get("stages") or {})
    if name not in names:
        raise ParamsError(f"dvc.yaml has no stage {name!r}.{closest(name, names)}")
    with _open_repository() as repo:
        return list_reasons(repo, name) or [f"{name} is up to date"]


@contextmanager
def _open_repository() -> Iterator[Any]:
    """Yield DVC's object of the project, and raise the errors of DVC as errors of this project."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from pipeline.project.revisions.dvc_checks import apply_checks, check_places
    from stages.contracts.errors import StageError, StageFailedError

    apply_checks()
    try:
        with Repo() as repo:
            try:
                yield repo
            except AssertionError:  # DVC cannot read an output outside of the project
                check_places(repo)
                raise
    except StageError:
        raise
    except DvcException as error:
        raise StageFailedError(
            f"{error}. If a process was killed before, run `learner doctor --fix`"
        ) from error


def status_lines() -> list[str]:
    """Return a line for each stage of dvc.yaml, one with the epochs of checkpoints, and one for each run."""
    from pipeline.commands.runs import describe_runs
    from pipeline.project.check import is_custom
    from pipeline.project.paths import read_paths, runs_root
    from pipeline.project.versions import VERSIONS

    definition = _read_files()
    with _open_repository() as repo:
        changed = repo.status()
    stages = list(definition.get("stages") or {})
    names = [
        *(name for name in stages if name not in VERSIONS),
        *(name for name in VERSIONS if name in stages),
    ]
    kinds = ["own program" if is_custom(name, definition) else f"version {VERSIONS[name]}" for name in names]
    width = max(map(len, names))
    lines = [
        f"{name:<{width}}  {kind}  {_describe_changes(changed.get(name))}"
        for name, kind in zip(names, kinds, strict=True)
    ]
    return [*lines, _describe_checkpoints(read_paths()["checkpoint"]), *describe_runs(runs_root())]


def _read_files() -> dict[str, Any]:
    """Return the content of dvc.yaml, after a check that DVC can read the files that it reads too.

    Raises `StageError` if it cannot.
    """
    from pipeline.project.lockfile import is_truncated, read_lockfile
    from pipeline.project.params import PARAMS
    from pipeline.project.yaml_files import read_definition, read_yaml
    from stages.contracts.errors import StageError

    lockfile = Path("dvc.lock")
    if is_truncated(lockfile):
        raise StageError(
            f"{lockfile} is truncated, as by a kill or a full disk. `learner run` and `learner doctor --fix` "
            "restore it"
        )
    read_lockfile(lockfile)
    if PARAMS.exists():
        read_yaml(PARAMS)
    return read_definition()


def _describe_changes(entries: list[Any] | None) -> str:
    if not entries:
        return "up to date"
    changes = []
    for entry in entries:
        if not isinstance(entry, dict):
            changes.append(str(entry))
            continue
        for kind, names in entry.items():
            changes += [f"{kind.removeprefix('changed ')} {_describe_names(names)}"]
    return "changed: " + "; ".join(changes)


def _describe_names(names: Any) -> str:
    if not isinstance(names, dict):
        return str(names)
    return ", ".join(
        f"{name} ({_describe_names(what)})" if isinstance(what, dict) else f"{name} {what}"
        for name, what in names.items()
    )


def _describe_checkpoints(directory: Path) -> str:
    from stages.runs.file_names import list_epochs

    epochs = list_epochs(directory)
    return (
        f"checkpoints of epoch {', '.join(map(str, epochs))}"
        if epochs
        else f"no checkpoint in {directory} until fit has finished"
    )
