"""The files and syncs of results that are copied from a run store."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from stages.runs import publish
from stages.system import files
from stages.system.files import describe, sync_trees

SYNCS = """
import os, sys
from pathlib import Path
from stages.runs import publish
count = [0]
sync = os.fsync
def counted(handle):
    count[0] += 1
    sync(handle)
os.fsync = counted
publish({Path(sys.argv[1]): Path(sys.argv[2])})
print(count[0])
"""


def logs(folder, epochs):
    for number in range(epochs):
        path = folder / f"epoch-{number}/Loss.log"
        path.parent.mkdir(parents=True)
        path.write_text(f"{number}.5,1\n")
    return folder


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("epochs", [2, 200])
def test_published_folder_has_exactly_the_files_of_the_store(tmp_path, epochs):
    source, target = logs(tmp_path / "store/train", epochs), tmp_path / "train"
    (target / "epoch-999").mkdir(parents=True)
    expected = {str(path): describe(path) for path in source.rglob("*.log")}

    assert publish({source: target}, expected) == {}

    assert content(target) == content(source)
    assert not (target / "epoch-999").exists()


@pytest.mark.parametrize("is_verified", [False, True])
def test_second_publication_copies_what_has_changed_and_all_that_is_verified(tmp_path, is_verified):
    source, target = logs(tmp_path / "store/telemetry", 9), tmp_path / "telemetry"
    expected = {str(path): describe(path) for path in source.rglob("*.log")} if is_verified else None
    publish({source: target}, expected)
    before = {path: path.stat().st_ino for path in target.rglob("*.log")}
    (target / "epoch-3/Loss.log").write_text("8.5,1\n")  # an edit of the user, of the same size
    if not is_verified:
        (source / "epoch-5/Loss.log").write_text("9.5,1\n")
        (source / "epoch-6/Loss.log").unlink()
        logs(source / "more", 1)

    publish({source: target}, expected)

    assert content(target) == content(source)
    assert all(path.stat().st_nlink == 1 for path in target.rglob("*.log"))
    same = {
        path.parent.name for path, inode in before.items() if path.exists() and path.stat().st_ino == inode
    }
    unchanged = {f"epoch-{number}" for number in range(9)} - {"epoch-3", "epoch-5", "epoch-6"}
    assert same == (set() if is_verified else unchanged)


@pytest.mark.skipif(sys.platform != "linux", reason="syncfs is a call of Linux")
def test_many_files_are_synced_with_one_call(tmp_path):
    source = logs(tmp_path / "store/train", 200)
    command = [sys.executable, "-c", SYNCS, source, tmp_path / "train"]

    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)

    assert int(done.stdout) <= 2


def test_without_syncfs_each_file_and_directory_is_synced(tmp_path, monkeypatch):
    source, synced = logs(tmp_path / "train", 40), []
    monkeypatch.setattr(files, "SYNCFS_REPORTS", (999, 0))
    monkeypatch.setattr(files, "sync_directory", synced.append)

    sync_trees([source])

    assert sorted(synced) == sorted([source, *source.rglob("*")])


def test_editing_an_output_in_place_does_not_change_the_store(tmp_path):
    source, target = tmp_path / "store/model", tmp_path / "model"
    source.parent.mkdir()
    source.write_bytes(b"weights" * 10_000)
    publish({source: target})

    with target.open("r+b") as file:
        file.write(b"edited!")
        os.fsync(file.fileno())

    assert source.read_bytes() == b"weights" * 10_000


def test_file_is_published_in_blocks(tmp_path):
    """The memory does not depend on the size of the file."""
    (tmp_path / "model").write_bytes(bytes(16 << 20))
    (tmp_path / "out").mkdir()

    tracemalloc.start()
    publish({tmp_path / "model": tmp_path / "out/model"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (tmp_path / "out/model").stat().st_size == 16 << 20
    assert peak < 4 << 20
