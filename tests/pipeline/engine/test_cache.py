"""Damaged files in DVC's cache are detected by their content and never restored as outputs."""

import json
import os
import shutil

import pytest
from ruamel.yaml import YAML

from pipeline.doctor.diagnostics import Level
from pipeline.doctor.stale_files import check_cache
from pipeline.project.revisions.revision import Revision
from stages.contracts.errors import CheckpointError

OUTPUTS = ("artifacts", "data", "dvc.lock")


def flip_bit(content):
    """Return *content* with one bit flipped."""
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def halve(content):
    """Return the first half of *content*."""
    return content[: len(content) // 2]


def damage(path, change):
    """Apply *change* to the content of *path*; like a disk fault, keep its mode and modification time."""
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(change(path.read_bytes()))
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return path


def find_cached(project, output, name=None):
    """Return the path in the cache of *output*, or of the file *name* in it."""
    root = project.folder / ".dvc/cache/files/md5"
    lock = YAML(typ="safe").load(project.folder / "dvc.lock")["stages"]
    [md5] = [out["md5"] for stage in lock.values() for out in stage["outs"] if out["path"] == output]
    if name:
        listed = json.loads((root / md5[:2] / md5[2:]).read_bytes())
        [md5] = [each["md5"] for each in listed if each["relpath"] == name]
    return root / md5[:2] / md5[2:]


def find_run_cache_entry(project, stage):
    """Return the path of the run-cache entry of *stage*."""
    entries = (project.folder / ".dvc/cache/runs").glob("??/*/*")
    [found] = [each for each in entries if f"pipeline stage {stage}\n" in each.read_text()]
    return found


def damage_everywhere(project):
    """Damage a cached output of each stage and a run-cache entry; return the damaged files."""
    return [
        damage(find_cached(project, "data/prepared", "dataset.json"), flip_bit),
        damage(find_cached(project, "artifacts/learner"), halve),
        damage(find_cached(project, "artifacts/metrics.json"), halve),
        damage(find_cached(project, "artifacts/train"), flip_bit),
        damage(find_cached(project, "artifacts/model.mpk.gz"), flip_bit),
        damage(find_run_cache_entry(project, "fit"), halve),
    ]


def remove_outputs(project):
    for name in ("artifacts", "data"):
        shutil.rmtree(project.folder / name)


def test_run_recomputes_damaged_cached_outputs(finished):
    before = finished.files(*OUTPUTS, ".dvc/cache")
    damaged = damage_everywhere(finished)
    remove_outputs(finished)

    done = finished.call("run")

    assert done.code == 0, done.text
    assert finished.files(*OUTPUTS, ".dvc/cache") == before
    assert all(str(each) in done.err for each in damaged[:-1])


def test_stages_that_run_again_replace_damaged_files_and_run_cache_entries(finished):
    before = finished.files(*OUTPUTS, ".dvc/cache")
    names = ("fit", "build-learner", "save-model")
    damaged = [damage(find_cached(finished, "artifacts/metrics.json"), flip_bit)]
    damaged += [damage(find_run_cache_entry(finished, name), halve) for name in names]
    (finished.folder / "dvc.lock").unlink()
    shutil.rmtree(finished.folder / "artifacts")

    done = finished.call("run")

    assert done.code == 0, done.text
    assert {f"{name}: ran" for name in names} <= set(done.out.splitlines())
    assert all(str(each) in done.err for each in damaged)
    assert finished.files(*OUTPUTS, ".dvc/cache") == before


def test_stage_runs_although_a_failed_command_left_its_folder_of_the_run_cache_empty(finished):
    before = finished.files(*OUTPUTS, ".dvc/cache")
    find_run_cache_entry(finished, "save-model").unlink()
    (finished.folder / "dvc.lock").unlink()

    done = finished.call("run")

    assert done.code == 0, done.text
    assert done.out.splitlines()[-1] == "save-model: ran"
    assert finished.files(*OUTPUTS, ".dvc/cache") == before


SIZED = """
from stages.models import Mlp


class Sized(Mlp):
    def __init__(self, input_shape, num_outputs, size=4):
        super().__init__(input_shape, num_outputs, hidden_sizes=[size])
"""


def test_dvc_repro_restores_no_outputs_of_another_param_named_size(finished):
    """DVC leaves the key ``size`` out of the hash of an entry of the run-cache, also that of a param."""
    (finished.folder / "nets.py").write_text(SIZED)
    finished.use_model("nets:Sized")
    finished.add_deps()
    sizes = []

    for arguments in ([], ["size: 8"], ["size: 16"], ["size: 8"]):
        finished.use_model("nets:Sized", *arguments)
        finished.dvc("repro", "build-learner").ok()
        spec = json.loads((finished.folder / "artifacts/learner/learner.json").read_text())
        sizes.append(spec["model"].get("size"))

    assert sizes == [None, 8, 16, 8]


@pytest.mark.parametrize("is_cached", [True, False])
def test_partial_copies_of_a_killed_dvc_beside_the_outputs_are_removed(finished, is_cached):
    parts = [finished.folder / "artifacts" / f".{letter * 22}.tmp" for letter in "-Z"]
    other = finished.folder / "artifacts/.of-the-user.tmp"
    for path in (*parts, other):
        path.write_bytes(b"weights")
    (finished.folder / "artifacts/model.mpk.gz").unlink()
    if not is_cached:
        find_run_cache_entry(finished, "save-model").unlink()

    finished.call("run", "save-model").ok()

    assert not any(part.exists() for part in parts)
    assert other.exists()


def test_damaged_files_are_found_and_removed(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    damaged = damage_everywhere(finished)

    found = list(check_cache())
    for each in found:
        each.fix()

    assert {each.level for each in found} == {Level.PROBLEM}
    assert all(any(str(path) in each.message for each in found) for path in damaged), found
    assert [path for path in damaged if path.exists()] == []
    [intact] = check_cache()
    assert intact.message.endswith("is intact")


@pytest.mark.long
def test_doctor_reports_damaged_files_and_removes_them(finished):
    damaged = damage_everywhere(finished)

    found = finished.call("doctor", "--timeout", "600", "--deep", "--json")
    fixed = finished.call("doctor", "--timeout", "600", "--deep", "--fix")

    assert found.code == 1
    listed = [each["message"] for each in json.loads(found.out)["data"] if each["subject"] == "cache"]
    assert all(any(str(path) in what for what in listed) for path in damaged), listed
    assert [path for path in damaged if path.exists()] == []
    assert "is intact" in fixed.out


@pytest.mark.parametrize("change", [flip_bit, halve])
@pytest.mark.parametrize("output", ["artifacts/metrics.json", "artifacts/plots"])
def test_compare_does_not_show_damaged_outputs_as_cached(finished, output, change):
    name = "Loss.tsv" if output.endswith("plots") else None
    path = damage(find_cached(finished, output, name), change)

    done = finished.call("compare", "HEAD", "--json")

    assert done.code == 0, done.text
    [run] = json.loads(done.out)["data"]["runs"]
    assert run["cached"] is False
    assert any(str(path) in note for note in run["notes"]), run["notes"]


READ_BY_RESUME = [  # outputs, and files in them, that a resumed run reads
    ("artifacts/checkpoint", "trainer-1.mpk.gz"),
    ("artifacts/checkpoint", "model-1.mpk.gz"),
    ("artifacts/valid", "epoch-1/Loss.log"),
    ("artifacts/checkpoint", None),
    ("artifacts/train", None),
]


@pytest.fixture
def fetch(finished, monkeypatch):
    """Return a function that fetches epoch 1 of HEAD to a folder, as build-learner does to resume."""
    monkeypatch.chdir(finished.folder)
    head = finished.ok("git", "rev-parse", "HEAD").strip()
    return lambda target: Revision(head).fetch(1, target)


def contents(folder):
    """Return a mapping from the path of each file below *folder* to its content."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_damaged_checkpoints_and_logs_are_fetched_from_a_remote(finished, fetch, tmp_path):
    fetch(tmp_path / "intact")
    finished.dvc("remote", "add", "-d", "store", str(tmp_path / "store")).ok()
    finished.dvc("push", "-q").ok()
    for each in [find_cached(finished, *read) for read in READ_BY_RESUME]:
        damage(each, flip_bit)

    fetch(tmp_path / "fetched")

    assert contents(tmp_path / "fetched") == contents(tmp_path / "intact")


@pytest.mark.parametrize("read", READ_BY_RESUME)
def test_damaged_checkpoint_or_log_is_refused_without_a_remote(finished, fetch, tmp_path, read):
    damage(find_cached(finished, *read), flip_bit)

    with pytest.raises(CheckpointError, match="revision .* is not complete here"):
        fetch(tmp_path / "fetched")
