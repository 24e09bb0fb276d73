"""Hard links between the checkpoints in the run store and DVC's cache."""

import hashlib
import resource
import tempfile
from pathlib import Path

import dvc.output
import dvc.utils.serialize
import pytest
from dvc.fs import LocalFileSystem
from dvc.repo import Repo
from dvc_data.hashfile import checkout
from dvc_data.hashfile.db.local import LocalHashFileDB
from dvc_data.hashfile.hash_info import HashInfo
from ruamel.yaml.representer import RepresenterError

from pipeline.engine import dvc_patches
from pipeline.engine.stage_run import link_into_cache
from pipeline.project.cache import local_objects
from stages.contracts.errors import StageFailedError

OTHER_PLACES = [place for place in (Path("/dev/shm"), Path("/var/tmp")) if place.is_dir()]  # noqa: S108
"""Where a folder may be on another file system than the project."""


@pytest.fixture
def dvc_folder(tmp_path):
    (tmp_path / ".dvc/cache/files/md5").mkdir(parents=True)
    return tmp_path / ".dvc"


def shared_inodes(folder):
    """Return the inodes of the files below *folder* that have more than one hard link."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.stat().st_ino for path in files if path.stat().st_nlink > 1}


def test_run_store_and_cache_share_each_checkpoint_and_the_output_is_a_copy(finished):
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")

    finished.call("run", "fit").ok()

    stores = [path for path in (finished.folder / ".runs").iterdir() if shared_inodes(path)]
    [stored] = [shared_inodes(path / "checkpoint") for path in stores]
    outputs = list((finished.folder / "artifacts/checkpoint").iterdir())
    assert len(stored) == len({path.read_bytes() for path in outputs}) > 4
    assert stored == shared_inodes(finished.folder / ".dvc/cache/files/md5")
    assert all(path.stat().st_nlink == 1 for path in outputs)
    assert "Data and pipelines are up to date" in finished.dvc("status", "fit").ok()


@pytest.mark.long  # the test before, with the copies that are DVC's default
def test_run_store_cache_and_output_share_each_checkpoint_if_dvc_uses_hard_links(finished):
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 1")
    (finished.folder / ".dvc/config.local").write_text("[cache]\ntype = hardlink\n")

    finished.call("run", "fit").ok()

    for path in (finished.folder / "artifacts/checkpoint").iterdir():
        assert path.stat().st_nlink >= 3, path


def test_cache_without_possible_links_is_refused_before_a_stage_runs(project):
    places = [place for place in OTHER_PLACES if place.stat().st_dev != project.folder.stat().st_dev]
    if not places:
        pytest.skip(f"none of {', '.join(map(str, OTHER_PLACES))} is another file system")
    with tempfile.TemporaryDirectory(dir=places[0]) as cache:
        (project.folder / ".dvc/config.local").write_text(f"[cache]\ndir = {cache}\ntype = hardlink\n")

        refused = project.call("run", "load-data")

        assert refused.code == 1
        assert "config --local cache.type hardlink,copy" in refused.err
        assert not (project.folder / "artifacts").exists()
        project.ok("dvc", "config", "--local", "cache.type", "hardlink,copy")
        project.call("run", "create-artifact-dir").ok()


def test_file_that_cannot_be_copied_to_the_cache_is_an_error(tmp_path):
    dvc_patches.apply()
    source, cache = (LocalHashFileDB(LocalFileSystem(), str(tmp_path / name)) for name in ("one", "other"))
    oid = hashlib.md5(b"weights", usedforsecurity=False).hexdigest()
    file = Path(source.oid_to_path(oid))
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")

    with pytest.raises(StageFailedError, match=r"1 of the files .* not copied to DVC's cache"):
        dvc.output.otransfer(source, cache, {HashInfo("md5", oid)}, validate_status=lambda _: file.unlink())


def test_copy_that_fails_leaves_no_temporary_file(tmp_path):
    dvc_patches.apply()
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.write_bytes(b"weights")
    (folder / "output/not-empty").mkdir(parents=True)

    with pytest.raises(OSError, match="Is a directory"):
        LocalFileSystem().put_file(str(source), str(folder / "output"))

    assert [path.name for path in folder.iterdir()] == ["output"]


def test_entry_of_the_run_cache_that_cannot_be_written_leaves_no_file(tmp_path):
    dvc_patches.apply()

    with pytest.raises(RepresenterError):
        dvc.utils.serialize.dump_yaml(tmp_path / f".{'a' * 22}.tmp", {"cmd": object()})

    assert list(tmp_path.iterdir()) == []


def test_file_that_tests_links_and_cannot_be_written_is_removed(tmp_path):
    dvc_patches.apply()
    system, limits = LocalFileSystem(), resource.getrlimit(resource.RLIMIT_FSIZE)
    other = tmp_path / f".{'a' * 22}.tmp"
    other.touch()

    resource.setrlimit(resource.RLIMIT_FSIZE, (2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkout.test_links(["copy"], system, str(tmp_path), system, str(tmp_path / "output"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert list(tmp_path.iterdir()) == [other]


def test_copy_from_the_cache_that_fails_is_reported_with_the_error_of_the_system(finished, monkeypatch):
    dvc_patches.apply()
    monkeypatch.chdir(finished.folder)
    model, limits = Path("artifacts/model.mpk.gz"), resource.getrlimit(resource.RLIMIT_FSIZE)
    size = model.stat().st_size
    model.unlink()

    with (
        Repo() as repo,
        pytest.raises(StageFailedError, match=r"model\.mpk\.gz .* DVC's cache: File too large"),
    ):
        [output] = [out for out in repo.index.outs if out.def_path == str(model)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))
        try:
            output.checkout(force=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def model(tmp_path):
    """A file in the checkpoints of a run store."""
    file = tmp_path / "store/checkpoint/model-1.mpk.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    return file


def test_link_replaces_a_damaged_cached_file(model, dvc_folder):
    md5 = hashlib.md5(b"weights", usedforsecurity=False).hexdigest()
    place = dvc_folder / "cache/files/md5" / md5[:2] / md5[2:]
    place.parent.mkdir()
    place.write_bytes(b"damaged")
    (model.parents[1] / ".model-1.mpk.gz.0123abcd.part").write_bytes(b"of a process that was killed")

    for _ in range(2):
        link_into_cache(model.parent, local_objects(dvc_folder))

        assert model.samefile(place)
        assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"weights", 0o444)
        assert [path.name for path in model.parents[1].rglob("*")] == ["checkpoint", model.name]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("", "cache/files/md5"),
        ("[cache]\ndir = ../other\n", "../other/files/md5"),
        ('[cache]\ndir = "../other#1, 2"\n', "../other#1, 2/files/md5"),
        ("[cache]\ndir = ../other  # on the large disk\n", "../other/files/md5"),
        ("[cache]\ndir = ~/other\n", "../other/files/md5"),
        ("[cache]\ndir = a, b\n", None),
        ("cache = other\n", None),
        ("[cache]\ndir = ../missing\n", None),
        ("[cache]\nshared = group\n", None),
        ("no section", None),
    ],
)
def test_local_cache_is_found_by_the_settings_of_dvc(dvc_folder, settings, found, monkeypatch):
    monkeypatch.setenv("HOME", str(dvc_folder.parent))
    for name in ("other", "other#1, 2"):
        (dvc_folder.parent / name / "files/md5").mkdir(parents=True)
    (dvc_folder / "config.local").write_text(settings)

    objects = local_objects(dvc_folder)
    assert (objects and objects.resolve()) == ((dvc_folder / found).resolve() if found else None)


def test_checkpoint_stays_unchanged_if_it_cannot_be_linked(model, dvc_folder):
    objects = local_objects(dvc_folder)
    objects.rmdir()
    objects.touch()

    link_into_cache(model.parent, objects)

    assert model.read_bytes() == b"weights"
    assert [path.name for path in model.parents[1].rglob("*")] == ["checkpoint", model.name]
