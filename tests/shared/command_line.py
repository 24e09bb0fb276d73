"""The commands of ``learner``, and its parser."""

import typer
from typer.main import get_command

from pipeline.cli import app

LEARNER = get_command(app)
USAGE_ERROR = typer.BadParameter.__base__


def walk_commands(command=LEARNER, words=()):
    """Yield the words and the command of *command* and of every group and command below it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk_commands(below, (*words, name))


def parse(words, command=LEARNER):
    """Parse the arguments *words* of ``learner`` without running it; raise `USAGE_ERROR` if it fails."""
    context = command.context_class(command, info_name="learner")
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, list(words))
        context = command.context_class(command, info_name=name, parent=context)
    command.make_context(context.info_name, list(words), parent=context.parent)
