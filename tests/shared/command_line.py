"""The commands of ``learner``, and its parser."""

from functools import cache

import typer.main

from pipeline.cli import app

LEARNER = typer.main.get_command(app)  # its own, as a command keeps the help option of its first context
typer.main.get_command = cache(typer.main.get_command)  # 40 ms, once in a process of `learner`
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
