"""The commands ``learner init`` and ``learner versions``: a user's own project, and what it is built on."""

from pathlib import Path
from typing import Annotated

import typer

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Made where it is missing; . for here.")]


def init(directory: Directory) -> None:
    """Make a project for your own model and data. No file that is there is overwritten."""
    from pipeline.scaffold.new_project import make_project

    for line in make_project(directory):
        typer.echo(line)


def versions() -> None:
    """Note in versions.yaml which stages are installed, for a project that `learner init` made."""
    from pipeline.versions import refresh

    for line in refresh() or ["versions.yaml says what is installed"]:
        typer.echo(line)
