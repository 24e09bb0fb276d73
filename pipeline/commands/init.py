"""The command ``learner init``."""

from pathlib import Path
from typing import Annotated

import typer

from stages.contracts.errors import ParamsError
from stages.contracts.printing import print_text


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
