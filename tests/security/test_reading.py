"""Commands that read a stranger's repository run nothing of it, and change no file that they do not name."""

import json
import shutil

import pytest
from forked_commands import run_in_pipe, run_in_terminal
from hostile import (
    TRACKED,
    UNTRACKED,
    World,
    deliver_bare_repository,
    deliver_modules,
    deliver_names,
    make_learner,
)
from long_tests import long
from test_terminal_text import COLOR, find_controls

from pipeline.doctor.stale_files import check_experiments

READING = (
    "--version",
    "check --no-import",
    "status",
    "params",
    "compare --html compare.html",
    "plot Loss",
    "runs list",
    "runs verify",
    "records verify .",
    "summary artifacts",
    "publish published",
    "versions",
    "doctor --timeout 0.01",
)
"""A command for each way of reading a project."""
PRINTING = (
    "--help",
    "compare",
    "compare --md",
    "compare --csv",
    "compare --json",
    "runs show",
    "records show artifacts/model.mpk.gz",
    "records verify artifacts",
)
"""Commands that read the same and print it in other ways."""
TRANSFERRING = ("doctor --deep --timeout 0.01", "resume big --epoch 1 --no-run")
WRITTEN = ("compare.html", "plot.svg", "versions.yaml")
"""The files that the commands that read name."""
TRANSFERRED = ("params.yaml", "artifacts", ".runs")
"""The files that the commands that transfer write."""
EXIT_CODES = {0, 1, 2}
COMPLETION = {"_LEARNER_COMPLETE": "complete_bash", "COMP_WORDS": "learner comp", "COMP_CWORD": "1"}
OUTPUTS = {
    "terminal": lambda world, *words: run_in_terminal(world.clone, *words, **world.environment),
    "pipe": lambda world, *words: run_in_pipe(world.clone, *words, **world.environment),
}


def find_effects(world, commands, run=World.learner, written=WRITTEN):
    """Run *commands* in the clone, and return a line for each thing that one of them must not do."""
    found = []
    before = world.snapshot(*written)
    for command in commands:
        done = run(world, *command.split())
        after = world.snapshot(*written)
        changed = sorted(each for each in {*before, *after} if before.get(each) != after.get(each))
        found += [f"{command}: changed {', '.join(changed)}"] * bool(changed)
        found += [f"{command}: searches the project for modules"] * getattr(done, "searched", False)
        found += [f"{command}: controls a terminal"] * bool(find_controls(COLOR.sub("", done.text)))
        if done.code not in EXIT_CODES or "Traceback" in done.text:
            found.append(f"{command}: exit code {done.code}, {done.text[-300:]}")
        before = after
    return found


@pytest.mark.parametrize("name", TRACKED)
def test_reading_changes_nothing_whatever_the_repository_delivers(world, name):
    world.deliver(TRACKED[name])
    world.fill_cache()

    assert find_effects(world, READING) == []


@pytest.mark.parametrize("name", UNTRACKED)
def test_reading_changes_nothing_whatever_others_left_in_the_project(world, name):
    world.deliver(untracked=[UNTRACKED[name]])
    world.fill_cache()

    assert find_effects(world, READING) == []


def test_bare_repository_in_a_project_is_refused(world):
    """A project below the top-level folder of its repository, in which git finds this other one first."""
    world.deliver()
    world.clone = world.clone / "project"
    shutil.copytree(world.origin, world.clone, ignore=shutil.ignore_patterns(".git"))
    world.origin = world.clone
    world.link("link", "params.yaml")
    deliver_bare_repository(world)
    world.git("-c", "safe.bareRepository=explicit", "add", "--all", folder=world.clone.parent)

    for words in (("status",), ("versions",), ("init", "new"), ("doctor", "--timeout", "0.01")):
        done = world.learner(*words)
        assert (done.code, "bare" in done.err) == (1, True), done.text
        assert "Traceback" not in done.text
    assert not world.marker.exists()


def test_command_that_doctor_recommends_quotes_names_of_others(world, monkeypatch):
    world.deliver()
    world.write(".dvc/tmp/exps/run/a/a.json", json.dumps({"returncode": None, "pid": 2**30}))
    world.write(".dvc/tmp/exps/run/a/a.run", json.dumps({"name": "a; program #"}))
    monkeypatch.chdir(world.clone)

    remedies = [diagnostic.remedy for diagnostic in check_experiments()]

    assert remedies == ["dvc queue kill 'a; program #' && dvc queue remove 'a; program #'"]


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("name", ["journal", "device as log", "local settings"])
def test_tracked_state_is_refused_in_every_format_of_the_index(world, name, version):
    world.deliver(TRACKED[name])
    world.git("update-index", "--index-version", version, folder=world.clone)

    done = world.learner("status")

    assert (done.code, "error: git tracks" in done.err) == (1, True), done.text


@pytest.mark.parametrize("output", ["terminal", long("pipe")])
def test_hostile_repository_is_read_with_every_output(world, output):
    world.deliver(
        deliver_names, deliver_modules, make_learner("csv:Net"), untracked=[UNTRACKED["temporary links"]]
    )
    world.fill_cache()
    run = OUTPUTS[output]
    commands = [each for each in (*READING, *PRINTING) if "--html" not in each]  # it takes seconds in a fork

    assert find_effects(world, commands, run) == []
    world.environment |= COMPLETION
    assert "compare" in run(world).text
    assert not world.marker.exists()


@pytest.mark.long
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", TRACKED)
def test_whatever_a_repository_delivers_is_read_and_transferred_with_every_output(world, name, output):
    TRACKED[name](world)
    world.commit_experiment("big")
    world.deliver(TRACKED[name], untracked=[UNTRACKED["temporary links"]])
    world.fill_cache()

    assert find_effects(world, (*READING, *PRINTING), OUTPUTS[output]) == []
    assert find_effects(world, TRANSFERRING, OUTPUTS[output], TRANSFERRED) == []
    assert not world.marker.exists()
