"""`learner push`, `learner pull`, and a model registry: what one has made, in a clone of another."""

import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from waiting import LIMIT_SECONDS, wait_until

from pipeline.commands.share import chosen_git_remote, pull_commands, push_commands
from stages.contracts.errors import ParamsError

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
    """An S3 server on loopback with one bucket, and its address."""
    pytest.importorskip("moto", reason="the S3 server comes with the test extra")
    pytest.importorskip("dvc_s3", reason="S3 needs the extra s3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
    """The port of an SFTP server on loopback, and the key that opens it."""
    pytest.importorskip("dvc_ssh", reason="SSH needs the extra ssh")
    asyncssh = pytest.importorskip("asyncssh")
    key, folder = tmp_path / "key", tmp_path / "far"
    made = asyncssh.generate_private_key("ssh-ed25519")
    made.write_private_key(key)
    made.write_public_key(f"{key}.pub")
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
    """A fresh clone of a project's git remote, by somebody who has nothing else of it."""

    def make(project):
        folder = tmp_path / "clone"
        project.ok("git", "clone", "-q", str(tmp_path / "git"), str(folder))
        made = type(project)(folder, project.environment["PREFECT_HOME"])
        made.environment |= ACCESS
        return made

    return make


def published(project, folder, url, *options):
    """*project* with a git remote in *folder* and a DVC remote at *url*, and its commits there."""
    project.environment |= ACCESS
    project.ok("git", "init", "-q", "--bare", str(folder / "git"))
    project.ok("git", "remote", "add", "origin", str(folder / "git"))
    project.ok("dvc", "remote", "add", "-d", "store", url)
    for name, value in options:
        project.ok("dvc", "remote", "modify", "store", name, value)
    project.ok("git", "commit", "-qam", "Say where outputs are stored")
    project.ok("git", "push", "-q", "origin", "HEAD")
    return project


def test_a_fresh_clone_gets_model_and_experiments_from_s3_and_goes_on(finished, clone, tmp_path, s3):
    """What was pushed to S3 is all there after a pull: nothing runs, and an experiment is gone on from."""
    published(finished, tmp_path, BUCKET, ("endpointurl", s3))
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


def test_from_ssh_a_tagged_model_is_got_by_name_and_an_experiment_alone(finished, clone, tmp_path, ssh):
    port, key = ssh
    options = ("port", str(port)), ("keyfile", str(key))
    published(finished, tmp_path, "ssh://user@127.0.0.1/srv/store", *options)
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
    assert "`dvc exp pull origin two` ended with" in refused.err


@pytest.mark.parametrize(
    ("there", "asked", "names", "chosen"),
    [
        (["origin", "other"], None, (), "origin"),
        (["other"], None, ("one",), "other"),
        (["a", "b"], None, (), None),
        (["a", "b"], "b", ("one",), "b"),
        ([], None, (), None),
    ],
)
def test_experiments_go_to_origin_or_the_only_remote_of_gits(there, asked, names, chosen):
    assert chosen_git_remote(there, asked, names) == chosen


def test_named_experiments_need_a_remote_of_gits():
    with pytest.raises(ParamsError, match="there: none. `git remote add origin URL`"):
        chosen_git_remote([], None, ["one"])


def test_with_no_remote_of_gits_only_outputs_are_sent():
    assert push_commands((), "store", None) == [["dvc", "push", "--run-cache", "--remote", "store"]]
    assert pull_commands((), None, None) == [["dvc", "pull", "--run-cache"]]
