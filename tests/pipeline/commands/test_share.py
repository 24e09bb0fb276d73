"""A project shares models and experiments with a fresh clone by `learner push` and `learner pull`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from waiting import LIMIT_SECONDS, wait_until

from pipeline.commands.share import choose_git_remote, push_commands
from stages.contracts.errors import ParamsError

MODEL = "artifacts/model.mpk.gz"
BUCKET = "s3://bucket/store"
ACCESS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """Yield the address of an S3 server on loopback with one bucket."""
    pytest.importorskip("moto", reason="the S3 server comes with the test extra")
    pytest.importorskip("dvc_s3", reason="S3 needs the extra s3")
    log = tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | ACCESS, stdout=output, stderr=subprocess.STDOUT)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        [address] = wait_until(
            lambda: re.findall(r"Running on (http://127.0.0.1:\d+)", log.read_text()), log.read_text, process
        )
        bucket = urllib.request.Request(f"{address}/bucket", method="PUT")  # noqa: S310  loopback
        opener.open(bucket).close()
        yield address
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)


@pytest.fixture
def ssh(tmp_path):
    """Yield the port of an SFTP server on loopback, and its key file."""
    pytest.importorskip("dvc_ssh", reason="SSH needs the extra ssh")
    asyncssh = pytest.importorskip("asyncssh")
    key, folder = tmp_path / "key", tmp_path / "far"
    key_pair = asyncssh.generate_private_key("ssh-ed25519")
    key_pair.write_private_key(key)
    key_pair.write_public_key(f"{key}.pub")
    (folder / "srv").mkdir(parents=True)
    command = [sys.executable, Path(__file__).with_name("sftp.py"), folder, key]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline()), key
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)
        process.stdout.close()


def publish(project, url, *options):
    """Give *project* the git remote ``../git`` and a DVC remote at *url*, and push its commits."""
    project.environment |= ACCESS
    project.ok("git", "init", "-q", "--bare", "../git")
    project.ok("git", "remote", "add", "origin", "../git")
    project.dvc("remote", "add", "-d", "store", url).ok()
    for name, value in options:
        project.dvc("remote", "modify", "store", name, value).ok()
    project.ok("git", "commit", "-qam", "Configure a remote")
    project.ok("git", "push", "-q", "origin", "HEAD")


def clone_of(project):
    """Clone the git remote of *project* to the folder ``../clone``, without its cache."""
    folder = project.folder.parent / "clone"
    project.ok("git", "clone", "-q", str(project.folder.parent / "git"), str(folder))
    made = type(project)(folder, project.environment["PREFECT_HOME"])
    made.environment |= ACCESS
    return made


def copy_with_remotes(project, folder):
    """Copy *project* and the remotes next to it to *folder*, and return the copy of the project."""
    shutil.copytree(project.folder.parent, folder, symlinks=True, dirs_exist_ok=True)
    return type(project)(folder / "project", project.environment["PREFECT_HOME"])


@pytest.fixture(scope="module")
def unpushed(_finished, tmp_path_factory):
    """Return a project with empty remotes, and the experiment "one"; tests must not change it."""
    project = _finished.copied_to(tmp_path_factory.mktemp("unpushed") / "project")
    publish(project, "../store")
    project.dvc("exp", "save", "-n", "one").ok()
    return project


@pytest.fixture(scope="module")
def pushed(unpushed, tmp_path_factory):
    """Return the project after `learner push`, and the outcome of that; tests must not change it."""
    project = copy_with_remotes(unpushed, tmp_path_factory.mktemp("pushed"))
    return project, project.call("push")


@pytest.fixture
def shared(pushed, tmp_path):
    """Return a project with remotes next to it that have its outputs and the experiment "one"."""
    return copy_with_remotes(pushed[0], tmp_path)


def hash_of(path):
    """Return the hash by which DVC names the content of *path*."""
    return hashlib.md5(path.read_bytes()).hexdigest()  # noqa: S324  of DVC


def object_of(store, md5):
    """Return the object *md5* in the cache or the local remote *store*."""
    return store / "files/md5" / md5[:2] / md5[2:]


def damage(stored):
    """Replace the last byte of the object *stored*."""
    stored.chmod(0o644)
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")


@pytest.mark.long
def test_fresh_clone_pulls_model_and_experiments_from_s3_and_resumes(finished, s3):
    """After a pull from S3, no stage has to run, and an experiment can be resumed."""
    publish(finished, BUCKET, ("endpointurl", s3))
    finished.ok("dvc", "exp", "run", "-n", "wider", "-S", "fit.batch_size=64")
    finished.ok("git", "checkout", "-q", ".")
    finished.ok("dvc", "checkout", "-q")

    pushed = finished.learner("push")
    other = clone_of(finished)
    pulled = other.learner("pull")

    assert (pushed.code, pulled.code) == (0, 0), pushed.text + pulled.text
    text = other.ok("dvc", "repro")
    assert "Running stage" not in text
    assert "up to date" in text
    assert other.ok("git", "status", "--short") == ""
    assert other.files("artifacts", "data") == finished.files("artifacts", "data")
    assert "wider" in other.ok("dvc", "exp", "list", "--all-commits")

    resumed = other.learner("resume", "wider", "--epoch", "2", "-S", "fit.num_epochs=3")

    assert resumed.code == 0, resumed.text
    assert " after epoch 2" in resumed.out
    assert "epoch 3/3" in resumed.out


def fetch_tagged_model_and_one_experiment(project):
    """Push and fetch a tagged model and one of two experiments, and return the clone that fetched them."""
    project.dvc("exp", "save", "-n", "two").ok()
    project.dvc("exp", "save", "-n", "three").ok()
    project.ok("git", "tag", "-a", "classifier@v1.0.0", "-m", "The first")
    project.ok("git", "push", "-q", "origin", "classifier@v1.0.0")
    project.call("push", "two").ok()

    project.dvc("artifacts", "get", "../git", "classifier", "-o", "../got").ok()
    assert (project.folder / "../got").read_bytes() == (project.folder / MODEL).read_bytes()
    other = clone_of(project)
    other.call("pull", "two").ok()
    assert other.dvc("exp", "list", "--all-commits", "--name-only").out.split() == ["two"]
    return other


@pytest.mark.long
def test_tagged_model_and_a_single_experiment_are_fetched_over_ssh(finished, tmp_path, ssh):
    port, key = ssh
    options = ("port", str(port)), ("keyfile", str(key))
    publish(finished, "ssh://user@127.0.0.1/srv/store", *options)
    finished.ok("dvc", "push")

    fetch_tagged_model_and_one_experiment(finished)

    assert list((tmp_path / "far/srv/store").iterdir())


def test_tagged_model_and_a_single_experiment_are_fetched(shared):
    other = fetch_tagged_model_and_one_experiment(shared)

    refused = other.learner("pull", "three")
    assert (refused.code, refused.out) == (1, "$ dvc exp pull origin three\n")
    assert "Traceback" not in refused.err
    assert "`dvc exp pull origin three` failed with exit code" in refused.err


def test_push_prints_the_experiments_first_and_a_dry_run_pushes_none(unpushed, pushed):
    planned = unpushed.call("push", "--dry-run").ok()

    lines = planned.splitlines()
    assert lines[0] == "experiments for origin (../git): 1"
    assert re.fullmatch(r"  one  [0-9a-f]{7}", lines[1])
    assert lines[2:] == ["$ dvc push --run-cache", "$ dvc exp push --all-commits origin"]
    assert not (unpushed.folder / "../store").exists()
    assert unpushed.ok("git", "ls-remote", "origin", "refs/exps/*") == ""

    project, done = pushed
    assert [line for line in done.ok().splitlines() if line in lines] == lines
    assert "refs/exps/" in project.ok("git", "ls-remote", "origin", "refs/exps/*")


def test_fresh_clone_pulls_all_files_and_verifies_them(shared):
    other = clone_of(shared)

    pulled = other.call("pull").ok()

    assert re.search(r"^verified: \d\d files, \d+ records and checkpoints$", pulled, re.MULTILINE)
    assert other.files("artifacts", "data") == shared.files("artifacts", "data")
    assert other.dvc("status").out == "Data and pipelines are up to date.\n"
    assert other.dvc("exp", "list", "--name-only").out.split() == ["one"]


def test_pull_does_not_look_for_outputs_that_git_has(shared):
    metrics = "      - ${paths.metrics}"
    shared.edit("dvc.yaml", f"{metrics}\n", f"{metrics}:\n          cache: false\n")
    shared.dvc("commit", "-f", "fit").ok()
    shared.ok("git", "remote", "remove", "origin")  # experiments would be checked as the workspace is

    shared.call("push").ok()
    for name in (".dvc/cache", "artifacts"):
        shutil.rmtree(shared.folder / name)
    shared.call("pull").ok()


def damage_model(project):
    """Damage the model in the remote of *project*; return a clone, the object and its intact content."""
    md5 = hash_of(project.folder / MODEL)
    stored, intact = object_of(project.folder.parent / "store", md5), (project.folder / MODEL).read_bytes()
    damage(stored)
    return clone_of(project), stored, intact


def test_damaged_file_in_the_remote_is_reported_and_not_kept_until_it_is_repaired(shared):
    other, stored, intact = damage_model(shared)

    pulled = other.call("pull")

    assert pulled.code == 1
    assert "workspace: artifacts/model.mpk.gz is damaged" in pulled.err
    assert "push them from a clone in which `learner doctor --deep` finds none" in pulled.err
    assert not object_of(other.folder / ".dvc/cache", stored.parent.name + stored.name).exists()
    assert not (other.folder / MODEL).exists()

    stored.write_bytes(intact)
    other.call("pull").ok()
    assert (other.folder / MODEL).read_bytes() == intact


def test_damaged_file_that_dvc_has_checked_out_is_replaced_after_the_remote_is_repaired(shared, tmp_path):
    """The state of DVC, which both commands share, knows that DVC and not the user has written the file."""
    other, stored, intact = damage_model(shared)
    state = {"DVC_SITE_CACHE_DIR": str(tmp_path / "state")}
    other.dvc("pull", **state)
    assert (other.folder / MODEL).read_bytes() not in (intact, b"")
    assert other.call("pull", **state).code == 1
    stored.write_bytes(intact)

    other.call("pull", **state).ok()

    assert (other.folder / MODEL).read_bytes() == intact


def test_pull_keeps_an_output_that_the_user_has_edited(shared):
    (shared.folder / MODEL).write_bytes(b"edited")

    pulled = shared.call("pull")

    assert pulled.code == 1, pulled.text
    assert (shared.folder / MODEL).read_bytes() == b"edited"


def test_push_fails_if_neither_cache_nor_remote_has_an_output(unpushed, tmp_path):
    project = copy_with_remotes(unpushed, tmp_path)
    object_of(project.folder / ".dvc/cache", hash_of(project.folder / MODEL)).unlink()

    pushed = project.call("push")

    assert pushed.code == 1
    assert re.search(r"neither the cache nor the remote has \d of the outputs: artifacts/", pushed.err)


def test_remote_that_is_newer_than_an_experiment_is_explained(shared):
    shared.dvc("remote", "add", "new", "../new").ok()

    pushed = shared.call("push", "one", "-r", "new")

    assert pushed.code == 1
    assert "if the remote is newer, run `dvc remote add --local NAME URL`" in pushed.err


def test_push_lists_experiments_of_the_same_name_on_several_commits(shared):
    shared.ok("git", "commit", "-q", "--allow-empty", "-m", "Another commit")
    shared.dvc("exp", "save", "-n", "one").ok()

    planned = shared.call("push", "--dry-run")

    assert re.findall(r"^  (one)  [0-9a-f]{7}$", planned.out, re.MULTILINE) == ["one", "one"]


def test_dry_run_refuses_names_that_cannot_be_pushed(unpushed):
    for run, options, message in (
        (unpushed.learner, ["HEAD"], "no experiment is named 'HEAD'; found: one"),
        (unpushed.call, ["-r", "nosuch"], "DVC has no remote 'nosuch'; found: store"),
        (unpushed.call, ["--git-remote", "nosuch"], "git has no remote 'nosuch'; found: origin"),
    ):
        planned = run("push", "--dry-run", *options)

        assert (planned.code, planned.out, "Traceback" in planned.err) == (2, "", False)
        assert message in planned.err


@pytest.mark.parametrize(
    ("remotes", "name", "experiments", "expected"),
    [
        (["origin", "other"], None, (), "origin"),
        (["other"], None, ("one",), "other"),
        (["a", "b"], None, (), None),
        (["a", "b"], "b", ("one",), "b"),
        ([], None, (), None),
    ],
)
def test_experiments_are_pushed_to_origin_or_to_the_only_git_remote(remotes, name, experiments, expected):
    assert choose_git_remote(remotes, name, experiments) == expected


def test_pushing_named_experiments_requires_a_git_remote():
    with pytest.raises(ParamsError, match="found remotes: none. Run `git remote add origin URL`"):
        choose_git_remote([], None, ["one"])


def test_only_outputs_are_pushed_without_a_git_remote():
    assert push_commands((), "store", None) == [["dvc", "push", "--run-cache", "--remote", "store"]]
