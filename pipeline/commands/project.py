"""The commands about a project: ``learner init``, ``check``, ``params``, ``versions`` and ``status``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pipeline.commands.envelope import ProblemsFound
from pipeline.commands.options import argument, flag, option
from pipeline.commands.results import (
    Checked,
    NewProject,
    ParamValue,
    StageReasons,
    StageState,
    Status,
    Versions,
)
from pipeline.project.lockfile import LOCKFILE, is_truncated, read_lockfile
from pipeline.project.paths import check_path, read_paths, runs_root
from pipeline.project.yaml_files import read_definition, read_yaml, stages_of
from stages.contracts.errors import ParamsError, StageError, StageFailedError, closest
from stages.contracts.printing import print_error, print_line, print_text
from stages.runs.file_names import list_epochs
from stages.runs.overview import runs


def check(
    *,
    no_import: Annotated[
        bool, flag("--no-import", "Import no module of the project, and do not check the parts in it.")
    ] = False,
    fix: Annotated[bool, flag("--fix", "Add the missing deps to dvc.yaml.")] = False,
) -> Checked:
    """Check params.yaml, the parts and data it names, and the deps in dvc.yaml.

    Deps must have the modules that params.yaml names, what they import, also in functions, and the data.
    Parts of the project that params.yaml names are imported, which runs the code of their modules.

    Exit with code 1 if dvc.yaml lacks a dependency or has one that does not exist, and with code 2 if
    params.yaml is not valid.

    Example: learner check --fix
    """
    from pipeline.project.check import find_late_mistakes, find_plugin_mistakes, list_imported_parts
    from pipeline.project.dependencies import find_missing_deps, fix_deps
    from pipeline.project.inputs import (
        find_missing_data,
        find_missing_files,
        find_outside_data,
    )
    from pipeline.project.params import PARAMS, build_params_error, describe_schedule, read_params
    from pipeline.project.versions import find_stale_versions

    check_path(Path.cwd())
    params = read_params()
    fixed = list(fix_deps(params) if fix else ())
    schedule = list(describe_schedule(params, read_paths()["dataset"]))
    for line in [*fixed, *schedule]:
        print_text(line)
    definition = read_definition()
    mistakes = [*find_late_mistakes(params, read_yaml(PARAMS), definition), *find_missing_data(params)]
    if not no_import:
        if parts := list_imported_parts(params):
            print_error(f"importing {', '.join(parts)}, as a run does; --no-import leaves this out")
        mistakes += find_plugin_mistakes(params)
    missing = [
        *find_missing_files(definition, params).values(),
        *find_missing_deps(params),
        *find_stale_versions(),
    ]
    for line in missing:
        print_text(line)
    if mistakes:
        raise build_params_error(PARAMS, mistakes)
    if missing:
        raise ProblemsFound(Checked(missing, fixed, schedule))
    print_text("params.yaml is valid")
    notes = [*find_outside_data(params, definition), *filter(None, [params.save_model.note])]
    for line in notes:
        print_text(line)
    return Checked([], fixed, [*schedule, *notes])


def params() -> dict[str, ParamValue]:
    """Print all params with their values, and which of them are defaults that params.yaml does not set.

    The page stages/params/reference.md describes each.

    Example: learner params --json
    """
    from pipeline.project.params import list_params

    listed = list(list_params())
    for key, value, is_set in listed:
        print_line(f"{key}: {json.dumps(value)}{'' if is_set else '  # default'}")
    return {key: ParamValue(value, is_default=not is_set) for key, value, is_set in listed}


def versions() -> Versions:
    """Write the versions of the installed stages to versions.yaml.

    DVC reads that file in a project that `learner init` created. Run this after an upgrade of
    learner-pipeline; `dvc repro` then runs the stages whose version changed.

    Example: learner versions
    """
    from pipeline.project.versions import describe_difference, read_installed_versions, update_versions

    replaced = update_versions()
    for name, previous in replaced.items():
        print_text(describe_difference(name, previous))
    if not replaced:
        print_text("versions.yaml is up to date")
    return Versions(read_installed_versions(), replaced)


def init(
    directory: Annotated[
        str | None,
        argument(
            "Folder of the project, created if missing; `.` for this one.",
            "print the templates",
            metavar="[DIR]",
        ),
    ] = None,
    template: Annotated[
        str | None,
        option("Model and data to begin with; `learner init` prints the names.", "minimal", metavar="NAME"),
    ] = None,
) -> NewProject | dict[str, str]:
    """Create a project for your own model and data, and commit it.

    Existing files are never overwritten. Without DIR, the command prints the templates.

    Example: learner init my-project --template digits
    """
    from pipeline.scaffold.new_project import DEFAULT_TEMPLATE, make_project

    if directory is None and template is not None:
        raise ParamsError(f"no folder. Run: learner init DIR --template {template}")
    if directory is not None and not directory.strip():
        raise ParamsError(f"{directory!r} names no folder. Name one, or pass . for this folder")
    if directory is None:
        return print_templates()
    template = template or DEFAULT_TEMPLATE
    files, commit, notes = make_project(Path(directory), template)
    for line in notes:
        print_text(line)
    return NewProject(directory, template, files, commit, notes)


def print_templates() -> dict[str, str]:
    """Print a line for each template and an example, and return the description of each by its name."""
    from pipeline.scaffold.new_project import describe_templates

    templates = describe_templates()
    width = max(map(len, templates))
    for name, description in templates.items():
        print_text(f"{name:{width}}  {description}")
    print_text(f"\nExample: learner init my-project --template {max(templates)}")
    return templates


def status(
    *,
    why: Annotated[
        str | None,
        option(
            "Print each file, param and version that makes this stage out of date, and nothing else.",
            "all stages",
            metavar="STAGE",
        ),
    ] = None,
) -> Status | StageReasons:
    """Print the state of each stage, what changed in stages that are out of date, and all runs.

    Example: learner status --why fit
    """
    if why is None:
        return print_status()
    from pipeline.engine.reproduce import explain_stage

    stages = stages_of(_read_files())
    if why not in stages:
        raise ParamsError(f"dvc.yaml has no stage {why!r}.{closest(why, stages)}")
    with _open_repository() as repo:
        reasons = explain_stage(repo, why)
    for line in reasons or [f"{why} is up to date"]:
        print_line(line)
    return StageReasons(why, reasons)


@contextmanager
def _open_repository() -> Iterator[Any]:
    """Yield DVC's object of the project, and raise the errors of DVC as errors of this project."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from pipeline.project.revisions.dvc_checks import apply_checks, check_places

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


def print_status() -> Status:
    """Print a line for each stage of dvc.yaml, one with the epochs of checkpoints, and one for each run."""
    from pipeline.commands.runs import describe_run, to_info
    from pipeline.project.check import is_custom
    from pipeline.project.versions import VERSIONS

    definition = _read_files()
    with _open_repository() as repo:
        changed = repo.status()
    stages = stages_of(definition)
    names = [
        *(name for name in stages if name not in VERSIONS),
        *(name for name in VERSIONS if name in stages),
    ]
    width = max(map(len, names))
    states = []
    for name in names:
        version, entries = None if is_custom(name, definition) else VERSIONS[name], changed.get(name) or []
        kind = f"version {version}" if version else "own program"
        print_line(f"{name:<{width}}  {kind}  {_describe_changes(entries)}")
        states.append(StageState(name, version, up_to_date=not entries, changed=entries))
    directory = read_paths()["checkpoint"]
    epochs = list_epochs(directory)
    shown = f"checkpoints of epoch {', '.join(map(str, epochs))}"
    print_line(shown if epochs else f"no checkpoint in {directory} until fit has finished")
    stores = runs(runs_root())
    for run in stores:
        print_line(describe_run(run))
    return Status(states, epochs, [to_info(run) for run in stores])


def _read_files() -> dict[str, Any]:
    """Return the content of dvc.yaml, after a check that DVC can read the files that it reads too.

    Raises `StageError` if it cannot.
    """
    from pipeline.project.params import PARAMS

    if is_truncated(LOCKFILE):
        raise StageError(
            f"{LOCKFILE} is truncated, as by a kill or a full disk. `learner run` and `learner doctor --fix` "
            "restore it"
        )
    read_lockfile(LOCKFILE)
    if PARAMS.exists():
        read_yaml(PARAMS)
    return read_definition()


def _describe_changes(entries: list[Any]) -> str:
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
