"""The command ``learner init``."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of the project, created if missing; `.` for this one."),
    ],
) -> None:
    """Create a project for your own model and data, and commit it.

    Existing files are never overwritten.

    Example: learner init my-project
    """
    from pipeline.scaffold.new_project import make_project

    for line in make_project(directory):
        typer.echo(line)
