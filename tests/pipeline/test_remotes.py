"""A project shares models and experiments with a fresh clone by `dvc push` and `dvc pull`."""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from waiting import LIMIT_SECONDS, wait_until

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


def pull(project, *experiments):
    """Pull what `dvc push` and `dvc exp push` have sent."""
    project.dvc("pull", "--run-cache").ok()
    for name in experiments:
        project.dvc("exp", "pull", "origin", name).ok()


@pytest.mark.long
def test_fresh_clone_pulls_model_and_experiments_from_s3_and_resumes(finished, s3):
    """After a pull from S3, no stage has to run, and an experiment can be resumed."""
    publish(finished, BUCKET, ("endpointurl", s3))
    finished.ok("dvc", "exp", "run", "-n", "wider", "-S", "fit.batch_size=64")
    finished.ok("git", "checkout", "-q", ".")
    finished.ok("dvc", "checkout", "-q")

    finished.dvc("push", "--run-cache").ok()
    finished.dvc("exp", "push", "origin", "wider").ok()
    other = clone_of(finished)
    pull(other, "wider")
    other.call("doctor", "--deep").ok()

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


@pytest.mark.long
def test_tagged_model_and_a_single_experiment_are_fetched_over_ssh(finished, tmp_path, ssh):
    port, key = ssh
    options = ("port", str(port)), ("keyfile", str(key))
    publish(finished, "ssh://user@127.0.0.1/srv/store", *options)
    finished.dvc("exp", "save", "-n", "two").ok()
    finished.ok("git", "tag", "-a", "classifier@v1.0.0", "-m", "The first")
    finished.ok("git", "push", "-q", "origin", "classifier@v1.0.0")
    finished.dvc("push").ok()
    finished.dvc("exp", "push", "origin", "two").ok()

    finished.dvc("artifacts", "get", "../git", "classifier", "-o", "../got").ok()
    assert (finished.folder / "../got").read_bytes() == (finished.folder / MODEL).read_bytes()
    other = clone_of(finished)
    other.dvc("exp", "pull", "origin", "two").ok()
    assert other.dvc("exp", "list", "--all-commits", "--name-only").out.split() == ["two"]
    assert list((tmp_path / "far/srv/store").iterdir())


def test_fresh_clone_pulls_all_files(finished):
    publish(finished, "../store")
    finished.dvc("push", "--run-cache").ok()
    other = clone_of(finished)

    pull(other)

    assert other.files("artifacts", "data") == finished.files("artifacts", "data")
    assert other.dvc("status").out == "Data and pipelines are up to date.\n"
