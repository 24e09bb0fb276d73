"""The help of every command: an example, and the default of every option. `tests/lint` checks the texts."""

import re
import shlex

import pytest
from command_line import USAGE_ERROR, parse, walk_commands
from typer.testing import CliRunner

from pipeline.cli import app

COMMANDS = {
    " ".join(words): command for words, command in walk_commands() if not hasattr(command, "commands")
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_the_command_line_accepts(name):
    examples = re.findall(r"^Example: (learner .+)$", COMMANDS[name].help, re.MULTILINE)

    assert len(examples) == 1
    words = shlex.split(examples[0])[1:]
    assert words[: len(name.split())] == name.split()
    parse(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_describes_every_parameter_with_its_default(name):
    printed = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "400"}).output

    for parameter in COMMANDS[name].params:
        shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.help
        [line] = [line for line in printed.splitlines() if parameter.help in line and shown in line]
        assert "[default: " in line or "[required]" in line, parameter.name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_prints_no_type_for_a_switch(name):
    printed = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "400"}).output

    typed = [line for line in printed.splitlines() if "bool" in line and "--help " not in line]

    assert not typed


def test_examples_are_parsed_by_the_real_command_line():
    with pytest.raises(USAGE_ERROR, match="No such option"):
        parse(["resume", "exp-name", "--epochs", "5"])
    with pytest.raises(USAGE_ERROR, match="No such command"):
        parse(["runs", "list-all"])


@pytest.mark.parametrize("name", ["", "run", "runs", "runs prune"])
def test_h_is_short_for_help(name):
    short, long = (CliRunner().invoke(app, [*name.split(), each]) for each in ("-h", "--help"))

    assert (short.exit_code, short.output) == (0, long.output)


def test_shell_completes_commands(open_project, tmp_path):
    words = {"COMP_WORDS": "learner com", "COMP_CWORD": "1", "_LEARNER_COMPLETE": "complete_bash"}

    assert open_project(tmp_path).run("learner", **words).out == "compare\n"
