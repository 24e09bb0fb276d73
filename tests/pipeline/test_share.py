"""A project shares models and experiments with a fresh clone by `learner push` and `learner pull`."""

import hashlib
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from free_ports import free_port
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
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path_factory.mktemp("s3") / "log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | ACCESS, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        bucket = urllib.request.Request(f"{address}/bucket", method="PUT")  # noqa: S310  loopback
        wait_until(lambda: opener.open(bucket), lambda: "the S3 server did not start", process)
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


@pytest.fixture
def clone(tmp_path):
    """Return a function that clones the git remote of a project, without its cache."""

    def make(project):
        folder = tmp_path / "clone"
        project.ok("git", "clone", "-q", str(tmp_path / "git"), str(folder))
        made = type(project)(folder, project.environment["PREFECT_HOME"])
        made.environment |= ACCESS
        return made

    return make


def publish(project, folder, url, *options):
    """Give *project* a git remote in *folder* and a DVC remote at *url*, and push its commits."""
    project.environment |= ACCESS
    project.ok("git", "init", "-q", "--bare", str(folder / "git"))
    project.ok("git", "remote", "add", "origin", str(folder / "git"))
    project.ok("dvc", "remote", "add", "-d", "store", url)
    for name, value in options:
        project.ok("dvc", "remote", "modify", "store", name, value)
    project.ok("git", "commit", "-qam", "Configure a remote")
    project.ok("git", "push", "-q", "origin", "HEAD")
    return project


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
def test_fresh_clone_pulls_model_and_experiments_from_s3_and_resumes(finished, clone, tmp_path, s3):
    """After a pull from S3, no stage has to run, and an experiment can be resumed."""
    publish(finished, tmp_path, BUCKET, ("endpointurl", s3))
    finished.ok("dvc", "exp", "run", "-n", "wider", "-S", "fit.batch_size=64")
    finished.ok("git", "checkout", "-q", ".")
    finished.ok("dvc", "checkout", "-q")

    pushed = finished.learner("push")
    other = clone(finished)
    pulled = other.learner("pull")

    assert (pushed.code, pulled.code) == (0, 0), pushed.text + pulled.text
    assert re.findall(r"^\$ .*", pushed.out, re.MULTILINE) == [
        "$ dvc push --run-cache",
        "$ dvc exp push --all-commits origin",
    ]
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


def test_tagged_model_and_a_single_experiment_are_fetched_over_ssh(finished, clone, tmp_path, ssh):
    port, key = ssh
    options = ("port", str(port)), ("keyfile", str(key))
    publish(finished, tmp_path, "ssh://user@127.0.0.1/srv/store", *options)
    for name in ("one", "two"):
        finished.ok("dvc", "exp", "save", "-n", name)
    finished.ok("git", "tag", "-a", "classifier@v1.0.0", "-m", "The first")
    finished.ok("git", "push", "-q", "origin", "classifier@v1.0.0")
    finished.ok("dvc", "push")
    assert finished.learner("push", "one").code == 0

    finished.ok("dvc", "artifacts", "get", str(tmp_path / "git"), "classifier", "-o", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == (finished.folder / "artifacts/model.mpk.gz").read_bytes()
    assert list((tmp_path / "far/srv/store").iterdir())

    other = clone(finished)
    assert other.learner("pull", "one").code == 0
    assert other.ok("dvc", "exp", "list", "--all-commits", "--name-only").split() == ["one"]
    refused = other.learner("pull", "two")
    assert (refused.code, "Traceback" in refused.err) == (1, False)
    assert "`dvc exp pull origin two` failed with exit code" in refused.err


def test_push_prints_the_experiments_first_and_a_dry_run_pushes_none(finished, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.ok("dvc", "exp", "save", "-n", "one")

    planned = finished.learner("push", "--dry-run")

    lines = planned.out.splitlines()
    assert lines[0] == f"experiments for origin ({tmp_path / 'git'}): 1"
    assert re.fullmatch(r"  one  [0-9a-f]{7}", lines[1])
    assert lines[2:] == ["$ dvc push --run-cache", "$ dvc exp push --all-commits origin"]
    assert not (tmp_path / "store").exists()
    assert finished.ok("git", "ls-remote", "origin", "refs/exps/*") == ""

    pushed = finished.learner("push")
    assert [line for line in pushed.out.splitlines() if line in lines] == lines
    assert "refs/exps/" in finished.ok("git", "ls-remote", "origin", "refs/exps/*")


def test_pull_verifies_what_it_fetched(finished, clone, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.learner("push")
    other = clone(finished)

    pulled = other.learner("pull")

    assert pulled.code == 0, pulled.text
    assert re.search(r"^verified: \d\d files, \d+ records and checkpoints$", pulled.out, re.MULTILINE)


def test_pull_does_not_look_for_outputs_that_git_has(finished, clone, tmp_path):
    finished.edit(
        "dvc.yaml", "      - ${paths.metrics}\n", "      - ${paths.metrics}:\n          cache: false\n"
    )
    finished.ok("dvc", "repro")
    finished.ok("git", "add", "-A")
    publish(finished, tmp_path, str(tmp_path / "store"))

    pushed = finished.learner("push")
    pulled = clone(finished).learner("pull")

    assert (pushed.code, pulled.code) == (0, 0), pushed.text + pulled.text


def test_damaged_file_in_the_remote_is_reported_and_not_kept(finished, clone, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.learner("push")
    md5 = hash_of(finished.folder / MODEL)
    damage(object_of(tmp_path / "store", md5))
    other = clone(finished)

    pulled = other.learner("pull")

    assert pulled.code == 1
    assert "workspace: artifacts/model.mpk.gz is damaged" in pulled.err
    assert "push them from a clone in which `learner doctor --deep` finds none" in pulled.err
    assert not object_of(other.folder / ".dvc/cache", md5).exists()
    assert not (other.folder / MODEL).exists()


@pytest.mark.parametrize("first", [("-m", "pipeline", "pull"), ("-m", "dvc", "pull")], ids=["learner", "dvc"])
def test_pull_from_a_repaired_remote_replaces_the_damaged_files_of_the_workspace(
    finished, clone, tmp_path, first
):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.learner("push")
    md5 = hash_of(finished.folder / MODEL)
    stored, intact = object_of(tmp_path / "store", md5), (finished.folder / MODEL).read_bytes()
    damage(stored)
    other = clone(finished)
    other.run(sys.executable, *first)
    assert other.learner("pull").code == 1
    stored.write_bytes(intact)

    pulled = other.learner("pull")

    assert pulled.code == 0, pulled.text
    assert (other.folder / MODEL).read_bytes() == intact


def test_pull_keeps_an_output_that_the_user_has_edited(finished, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.learner("push")
    (finished.folder / MODEL).write_bytes(b"edited")

    pulled = finished.learner("pull")

    assert pulled.code == 1, pulled.text
    assert (finished.folder / MODEL).read_bytes() == b"edited"


def test_push_fails_if_neither_cache_nor_remote_has_an_output(finished, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    md5 = hashlib.md5((finished.folder / "artifacts/model.mpk.gz").read_bytes()).hexdigest()  # noqa: S324  of DVC
    (finished.folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()

    pushed = finished.learner("push")

    assert pushed.code == 1
    assert re.search(r"neither the cache nor the remote has \d of the outputs: artifacts/", pushed.err)


def test_remote_that_is_newer_than_an_experiment_is_explained(finished, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.ok("dvc", "exp", "save", "-n", "old")
    finished.ok("dvc", "remote", "add", "new", str(tmp_path / "new"))

    pushed = finished.learner("push", "old", "-r", "new")

    assert pushed.code == 1
    assert "if the remote is newer, run `dvc remote add --local NAME URL`" in pushed.err


def test_push_lists_experiments_of_the_same_name_on_several_commits(finished, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))
    finished.ok("dvc", "exp", "save", "-n", "one")
    finished.ok("git", "commit", "-q", "--allow-empty", "-m", "Another commit")
    finished.ok("dvc", "exp", "save", "-n", "one")

    planned = finished.learner("push", "--dry-run")

    assert re.findall(r"^  (one)  [0-9a-f]{7}$", planned.out, re.MULTILINE) == ["one", "one"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["HEAD"], "no experiment is named 'HEAD'; found: none"),
        (["-r", "nosuch"], "DVC has no remote 'nosuch'; found: store"),
        (["--git-remote", "nosuch"], "git has no remote 'nosuch'; found: origin"),
    ],
)
def test_dry_run_refuses_names_that_cannot_be_pushed(options, message, finished, tmp_path):
    publish(finished, tmp_path, str(tmp_path / "store"))

    planned = finished.learner("push", "--dry-run", *options)

    assert (planned.code, "Traceback" in planned.err) == (2, False)
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
