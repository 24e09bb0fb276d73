"""One run in a project at a time."""

import fcntl


def test_a_second_run_says_who_has_the_project_and_changes_nothing(finished):
    before = finished.files("artifacts", "data", "dvc.lock")
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    (finished.folder / ".runs").mkdir(exist_ok=True)
    with (finished.folder / ".runs/lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("4711\n")
        held.flush()

        for refused in (finished.learner("run"), finished.run("dvc", "repro", "fit")):
            assert refused.code != 0
            assert "in use by pid 4711" in refused.err
            assert "Traceback" not in refused.text

    assert finished.files("artifacts/checkpoint", "artifacts/model.mpk.gz").items() <= before.items()
    assert finished.learner("run").code == 0


def test_what_a_kill_cut_of_the_note_dvc_keeps_is_no_hindrance(finished):
    note = finished.folder / ".dvc/tmp/rwlock"
    for cut in ("", '{"write": {'):
        note.write_text(cut)

        assert "unchanged" in finished.ok("python", "-m", "pipeline", "run")

    assert finished.run("dvc", "repro").code == 0
