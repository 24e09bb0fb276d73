"""The commands ``learner check`` and ``learner versions``, which updates versions.yaml."""

from typing import Annotated

import typer

from pipeline.commands.options import flag
from pipeline.commands.run import print_warning
from stages.contracts.printing import print_text


def check(
    *,
    no_import: Annotated[
        bool, flag("--no-import", "Import no module of the project, and do not check the parts in it.")
    ] = False,
) -> None:
    """Check params.yaml, the parts and data it names, and the deps in dvc.yaml.

    Parts of the project that params.yaml names are imported, which runs the code of their modules.

    Exit with code 1 if dvc.yaml lacks a dependency, and with code 2 if params.yaml is not valid.

    Example: learner check --no-import
    """
    from pipeline.project.check import PARAMS, find_late_mistakes, find_missing_data, find_missing_deps
    from pipeline.project.params import build_params_error, read_params
    from pipeline.project.plugin_check import find_plugin_mistakes, list_imported_parts
    from pipeline.project.versions import find_stale_versions
    from pipeline.project.yaml_files import read_definition, read_yaml

    params = read_params()
    mistakes = [
        *find_late_mistakes(params, read_yaml(PARAMS), read_definition()),
        *find_missing_data(params),
    ]
    if not no_import:
        if parts := list_imported_parts(params):
            print_warning(f"importing {', '.join(parts)}, as a run does; --no-import leaves this out")
        mistakes += find_plugin_mistakes(params)
    missing = [*find_missing_deps(params), *find_stale_versions()]
    for line in missing:
        print_text(line)
    if mistakes:
        raise build_params_error(PARAMS, mistakes)
    if missing:
        raise typer.Exit(1)
    print_text("params.yaml is valid")


def versions() -> None:
    """Write the versions of the installed stages to versions.yaml.

    DVC reads that file in a project that `learner init` created. Run this after an upgrade of
    learner-pipeline; `dvc repro` then runs the stages whose version changed.

    Example: learner versions
    """
    from pipeline.project.versions import update_versions

    for line in update_versions() or ["versions.yaml is up to date"]:
        print_text(line)
