"""Copies of a run's files at their published paths: all of them, or none."""

import pytest

from stages.runs import publishing
from stages.runs.publishing import publish
from stages.system.files import copy_file, describe, new_part


@pytest.fixture
def made(tmp_path):
    """Return source to target: a file, a folder, and a target whose source is missing."""
    (tmp_path / "store/logs/deep").mkdir(parents=True)
    (tmp_path / "store/logs/a").write_text("a")
    (tmp_path / "store/logs/deep/b").write_text("b")
    (tmp_path / "store/metrics").write_text("numbers")
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    (out / "logs/old").write_text("old")
    (out / "plots").mkdir()
    (out / "metrics").write_text("old")
    return {tmp_path / "store" / name: out / name for name in ("logs", "metrics", "plots")}


def content(made):
    [folder] = {target.parent for target in made.values()}
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


NEW = {"logs/a": "a", "logs/deep/b": "b", "metrics": "numbers"}


def manifest_of(made):
    sources = [path for source in made for path in (source, *source.rglob("*")) if path.is_file()]
    return {str(path): {name: describe(path)[name] for name in ("size", "sha256")} for path in sources}


def test_targets_are_replaced_and_those_without_a_source_are_removed(made):
    assert publish(made, manifest_of(made)) == {}

    assert content(made) == NEW
    assert not list(made.values())[2].exists()
    assert publish(made) == {}
    assert content(made) == NEW


def test_folder_replaces_a_file(made, tmp_path):
    publish({tmp_path / "store/logs": tmp_path / "out/metrics"})

    assert (tmp_path / "out/metrics/deep/b").read_text() == "b"


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_nothing_is_published_if_a_source_is_damaged(made, tmp_path, harm):
    expected, before = manifest_of(made), content(made)
    path = tmp_path / "store/logs/deep/b"
    if harm == "changed":
        path.write_text("c")
    else:
        path.unlink()

    wrong = publish(made, expected)

    assert list(wrong) == [str(path)]
    assert ("missing" in wrong[str(path)]) == (harm == "missing")
    assert content(made) == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"logs", "metrics", "plots"}


def test_error_while_copying_changes_no_target_and_leaves_no_copies(made, tmp_path):
    before = content(made)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")

    with pytest.raises(OSError, match="file"):
        publish({**made, tmp_path / "store/metrics": blocked / "metrics"})

    assert content(made) == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"logs", "metrics", "plots"}


def test_stale_copies_of_a_killed_publication_are_replaced(made, tmp_path):
    stale = new_part(tmp_path / "out/logs")
    stale.mkdir()
    (stale / "stale").touch()
    new_part(tmp_path / "out/plots").write_text("stale")

    publish(made)

    assert content(made) == NEW


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_copy_has_every_byte(tmp_path, monkeypatch, size):
    monkeypatch.setattr(publishing, "CHUNK_BYTES", 8)
    source = tmp_path / "source"
    source.write_bytes(bytes(range(size)))

    assert publish({source: tmp_path / "new/folder/target"}, manifest_of({source: None})) == {}
    copy_file(source, tmp_path / "other")

    assert (tmp_path / "new/folder/target").read_bytes() == bytes(range(size))
    assert (tmp_path / "other").read_bytes() == bytes(range(size))
