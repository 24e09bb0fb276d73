"""The command ``learner versions``."""

import typer


def versions() -> None:
    """Write the versions of the installed stages to versions.yaml.

    DVC reads that file in a project that `learner init` created. Run this after an upgrade of
    learner-pipeline; `dvc repro` then runs the stages whose version changed.

    Example: learner versions
    """
    from pipeline.versions import update_versions

    for line in update_versions() or ["versions.yaml is up to date"]:
        typer.echo(line)
