"""The command ``learner summary``."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import flag
from stages.contracts.errors import StageError
from stages.contracts.printing import print_text


def summary(
    directory: Annotated[
        Path,
        typer.Argument(help="Artifact directory, with folders train/ and valid/, written by fit or by Burn."),
    ] = Path("artifacts"),
    *,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Print the summary table of a run from its log files.

    Example: learner summary artifacts --json
    """
    from stages.learner.summary import summary_json, summary_text
    from stages.loggers.log_files import count_epochs, read_history, read_tests

    history, tests, epochs = read_history(directory), read_tests(directory), count_epochs(directory)
    if not len(history) and not tests:
        raise StageError(
            f"{directory} has no logs: found no train/epoch-1/*.log in it. Pass an artifact directory"
        )
    if as_json:
        text = summary_json(history, tests, epochs=epochs) + "\n"
    else:
        text = summary_text(history, tests=tests, epochs=epochs)
    print_text(text, end="")
