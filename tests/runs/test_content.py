"""The hash of the content of a file or directory."""

import os
import shutil

import pytest

from stages.contracts.errors import DataError
from stages.runs import content_hash
from stages.system.files import sha256


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "data"
    (made / "deep/er").mkdir(parents=True)
    (made / "a").write_bytes(b"1")
    (made / "deep/b").write_bytes(b"22")
    (made / "deep/er/.hidden").write_bytes(b"333")
    return made


def test_hash_does_not_depend_on_times_modes_links_and_empty_directories(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "a").unlink()
    (copy / "a").symlink_to(folder / "a")
    os.utime(copy / "deep/b", (1, 1))
    (copy / "deep/b").chmod(0o444)
    (copy / "empty").mkdir()

    assert content_hash(copy) == content_hash(folder)
    (tmp_path / "link").symlink_to(copy)
    assert content_hash(tmp_path / "link") == content_hash(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").write_bytes(b"2"),
        lambda folder: (folder / "a").rename(folder / "c"),
        lambda folder: (folder / "a").rename(folder / "deep/a"),
        lambda folder: (folder / "deep/er/.hidden").write_bytes(b""),
        lambda folder: (folder / "deep/er/.hidden").unlink(),
        lambda folder: (folder / ".more").touch(),
    ],
)
def test_hash_depends_on_every_name_and_every_byte(folder, change):
    before = content_hash(folder)

    change(folder)

    assert content_hash(folder) != before


def test_hash_of_a_file_is_that_of_its_bytes(folder):
    assert content_hash(folder / "a") == sha256(folder / "a")


def test_unreadable_path_is_named_in_the_error(folder):
    for make, words in (
        (lambda: (folder / "gone").symlink_to(folder / "nowhere"), "gone cannot be read: No such file"),
        (lambda: (folder / "gone").symlink_to(folder), "gone is a link to a directory that contains it"),
        (lambda: os.mkfifo(folder / "gone"), "gone is neither a file nor a directory"),
    ):
        make()
        with pytest.raises(DataError, match=words):
            content_hash(folder)
        (folder / "gone").unlink()
    with pytest.raises(DataError, match="nowhere cannot be read"):
        content_hash(folder / "nowhere")
