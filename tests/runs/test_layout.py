"""Names below ``.runs`` that another version of the project must find again."""

from pathlib import Path

import pytest

from stages.runs import layout


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (layout.PROJECT_LOCK, "lock"),
        (layout.LOCKFILE_BACKUP, "dvc.lock"),
        (layout.LOCKFILE_BACKUP_LOCK, "dvc.lock.lock"),
        (layout.PARAMS_JOURNAL, "params-journal.json"),
        (layout.PARAMS_BACKUP, "params-before.yaml"),
        (layout.FLOW_RUNS_FOLDER, "flow-runs"),
        (layout.UNREACHABLE_API_FILE, "prefect-unreachable.json"),
        (layout.COPIES_FOLDER, "experiments"),
        (layout.SWEEP_FOLDER, "sweep"),
        (layout.watchdog_claim(12), "watchdog-12"),
    ],
)
def test_file_of_the_pipeline_keeps_its_name(path, name):
    assert path == Path(".runs", name)


def test_stores_locks_and_trash_are_told_apart_by_their_names(tmp_path):
    key = "3f2a" * 4
    names = (key, f"{key}.lock", f".trash-{key}-01234567", "lock", "dvc.lock", "durations")
    for name in names:
        (tmp_path / name).mkdir()

    assert layout.stores(tmp_path) == [tmp_path / key]
    assert layout.locks(tmp_path) == [layout.lock_of(tmp_path / key)] == [tmp_path / f"{key}.lock"]
    assert layout.trash(tmp_path) == [tmp_path / f".trash-{key}-01234567"]
    assert layout.new_trash_path(tmp_path / key).name.startswith(f".trash-{key}-")


def test_only_a_lock_with_content_names_a_process(tmp_path):
    held, released = (layout.lock_of(tmp_path / (4 * key)) for key in ("3f2a", "3f2b"))
    held.write_text("7")
    released.touch()

    assert layout.list_named_locks(tmp_path) == [held]
