"""Params that a run sets in params.yaml: they stay after it has completed, and are removed otherwise."""

import pytest

from pipeline.doctor.diagnostics import Level
from pipeline.doctor.stale_files import check_params_journal

RUN = """
import os, signal, subprocess, sys
from pipeline.engine.lock import project_lock
from pipeline.engine.params_journal import edit_params

with project_lock(), edit_params(["fit.num_epochs=9"]):
    {action}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
CHECK = 'subprocess.run([sys.executable, "-m", "pipeline", "check"])'
REPORTED = "warning: params.yaml has the overrides of a run that was killed"
RESTORED = "restored params.yaml: a run that was killed had set overrides in it"


def run_with_overrides(project, action=KILL):
    """Execute *action*, by default a kill, in a process that has set an override in params.yaml."""
    (project.folder / "run_with_overrides.py").write_text(RUN.format(action=action))
    return project.fork("run_with_overrides")


def test_commands_that_read_report_the_overrides_of_a_killed_run(project):
    run_with_overrides(project)
    before = project.files("params.yaml", ".runs")

    for command in (["check"], ["status"], ["runs", "list"]):
        output = project.call(*command).err

        assert REPORTED in output, command
        assert project.files("params.yaml", ".runs") == before, command


@pytest.mark.parametrize("command", [["sweep", "-S", "fit.lr=x"], ["resume", "no-such-rev", "--epoch", "1"]])
def test_next_command_that_writes_restores_params_after_a_run_was_killed(project, command):
    before = project.files("params.yaml")
    run_with_overrides(project)
    assert project.files("params.yaml") != before

    output = project.call(*command).err

    assert RESTORED in output
    assert project.files("params.yaml") == before
    assert REPORTED not in project.call("check").text


def test_doctor_reports_the_overrides_of_a_killed_run_and_restores_params_with_fix(project, monkeypatch):
    before = project.files("params.yaml")
    run_with_overrides(project)
    monkeypatch.chdir(project.folder)

    [found] = check_params_journal()
    found.fix()

    assert "has the overrides of a run that was killed" in found.message
    assert project.files("params.yaml") == before
    assert [each.level for each in check_params_journal()] == [Level.OK]


def test_repro_runs_no_stage_with_the_overrides_of_a_killed_run(project):
    before = project.files("params.yaml")
    run_with_overrides(project)

    refused = project.dvc("repro", "-s", "create-artifact-dir")

    assert refused.code != 0
    assert "create-artifact-dir was not run with them. Run the same command again" in refused.err
    assert project.files("params.yaml") == before
    assert project.dvc("repro", "-s", "create-artifact-dir").code == 0


def test_edit_after_a_kill_is_kept_and_the_previous_params_are_backed_up(project):
    before = (project.folder / "params.yaml").read_bytes()
    run_with_overrides(project)
    project.edit("params.yaml", "num_epochs: 9", "num_epochs: 7")

    output = project.call("sweep", "-S", "fit.lr=x").err

    assert "warning: params.yaml was edited after a killed run had set overrides in it" in output
    assert "num_epochs: 7" in (project.folder / "params.yaml").read_text()
    assert (project.folder / ".runs/params-before.yaml").read_bytes() == before
    assert "edited" not in project.call("check").err


def test_command_keeps_the_overrides_of_a_run_in_progress(project):
    done = run_with_overrides(project, CHECK)

    assert (done.code, done.out) == (0, "params.yaml is valid\n"), done.text
    assert RESTORED not in done.err
    assert "num_epochs: 9" in (project.folder / "params.yaml").read_text()


def test_failed_run_restores_params_byte_for_byte(project):
    path = project.folder / "params.yaml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = path.read_bytes()

    failed = run_with_overrides(project, 'raise SystemExit("failed on purpose")')

    assert "failed on purpose" in failed.err
    assert path.read_bytes() == before


def test_run_sets_params_that_stay_after_it_has_completed(finished):
    """In test_events.py, a run completes with another number of epochs."""
    before = (finished.folder / "params.yaml").read_text()

    done = finished.call("run", "-S", "save_model.recorder=compact", "-S", "save_model.exports=[safetensors]")

    assert done.code == 0, done.text
    after = (finished.folder / "params.yaml").read_text()
    assert after == before.replace("recorder: default", "recorder: compact").replace(
        "exports: []", "exports:\n  - safetensors"
    )
    assert (finished.folder / "artifacts/exports/model.safetensors").exists()
    assert finished.dvc("status", "--quiet").ok() == ""


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("fit.num_epochs=0", 2, "params.yaml (unchanged) is not valid"),
        ("fit.no_such_key=1", 2, "Correct the key, or add one that is unknown with a plus"),
        ("load_data.source={kind: npz, path: nowhere.npz}", 1, "there is no file 'nowhere.npz'"),
    ],
)
def test_failed_run_with_set_params_does_not_change_the_file(project, override, code, message):
    before = project.files("params.yaml")

    failed = project.call("run", "-S", override)

    assert (failed.code, message in failed.err) == (code, True), failed.text
    assert project.files("params.yaml") == before
