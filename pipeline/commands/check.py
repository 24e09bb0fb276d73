"""The command ``learner check``."""

from pathlib import Path

import typer


def check() -> None:
    """Check params.yaml, the parts and data it names, and the deps in dvc.yaml.

    Exit with code 1 if dvc.yaml lacks a dependency, and with code 2 if params.yaml is not valid.

    Example: learner check
    """
    from pipeline.check import PARAMS, late_mistakes, missing_data, missing_deps
    from pipeline.params import not_valid, read_params
    from pipeline.plugin_check import plugin_mistakes
    from pipeline.versions import stale
    from pipeline.yaml_files import read_yaml

    params = read_params()
    mistakes = [
        *late_mistakes(params, read_yaml(PARAMS), read_yaml(Path("dvc.yaml"))),
        *missing_data(params),
        *plugin_mistakes(params),
    ]
    missing = [*missing_deps(params), *stale()]
    for line in missing:
        typer.echo(line)
    if mistakes:
        raise not_valid(PARAMS, mistakes)
    if missing:
        raise typer.Exit(1)
    typer.echo("params.yaml is valid")
