"""`learner resume` continues from a checkpoint of any run that DVC tracks."""

import json
import shutil

import pytest
from long_tests import long
from ruamel.yaml import YAML

EQUAL_OUTPUTS = [f"artifacts/{name}" for name in ("model.mpk.gz", "metrics.json", "plots", "train", "valid")]


@pytest.fixture(scope="module")
def _two_epochs(_finished, tmp_path_factory):
    return _finished.copied_to(tmp_path_factory.mktemp("two") / "project")


@pytest.fixture
def two_epochs(_two_epochs):
    """Return a project with a committed run of two epochs; only its params are restored after a test."""
    before = (_two_epochs.folder / "params.yaml").read_bytes()
    yield _two_epochs
    (_two_epochs.folder / "params.yaml").write_bytes(before)


def resolve_commit(project, name):
    return project.ok("git", "rev-parse", name).strip()


def output_hashes(lock):
    """Return a map from path to hash of the outputs of fit and save-model in the text of a dvc.lock."""
    stages = YAML(typ="safe").load(lock)["stages"]
    return {out["path"]: out["md5"] for name in ("fit", "save-model") for out in stages[name]["outs"]}


def test_resumed_run_equals_uninterrupted_run(finished, tmp_path):
    other = finished.copied_to(tmp_path / "other")
    other.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
    other.call("run").ok()
    uninterrupted = other.files(*EQUAL_OUTPUTS)

    text = finished.call("resume", "HEAD", "--epoch", "2", "-S", "fit.num_epochs=3").out

    assert " after epoch 2" in text
    assert finished.files(*EQUAL_OUTPUTS) == uninterrupted
    assert not list((finished.folder / ".runs").glob(".resume-*"))


@pytest.mark.long  # an experiment in a copy runs the same stages with the same params
def test_experiment_in_a_copy_resumes_as_a_run_in_the_workspace(finished, tmp_path):
    other = finished.copied_to(tmp_path / "other")
    finished.call("resume", "HEAD", "--epoch", "2", "-S", "fit.num_epochs=3").ok()

    other.call("resume", "HEAD", "--epoch", "2", "-S", "fit.num_epochs=3", "--no-run").ok()
    text = other.dvc("exp", "run", "--temp", "-n", "apart").ok()

    assert " after epoch 2" in text
    (ref,) = other.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps/**/apart").split()
    assert output_hashes(other.ok("git", "show", f"{ref}:dvc.lock")) == output_hashes(
        (finished.folder / "dvc.lock").read_text()
    )


def test_run_of_a_project_in_a_subfolder_of_a_repository_is_resumed(finished, open_project, tmp_path):
    """DVC opens a revision at the top of the repository, where this project has no .dvc."""
    top = open_project(tmp_path / "top")
    project = finished.copied_to(top.folder / "größer/my lab")
    shutil.rmtree(project.folder / ".git")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A project in a subfolder"]):
        top.ok("git", *arguments)

    project.call("resume", "HEAD", "--epoch", "1", "--no-run").ok()
    project.call("stage", "build-learner").ok()

    assert list((project.folder / "artifacts/learner/checkpoint").glob("model-1.*"))


def test_resume_writes_the_full_sha_of_any_name_and_keeps_comments(two_epochs):
    sha = resolve_commit(two_epochs, "HEAD")
    two_epochs.ok("git", "tag", "good")
    kept = two_epochs.add_experiment("kept")
    before = (two_epochs.folder / "params.yaml").read_text()

    for name, expected, epochs in (("kept", kept, 8), ("good", sha, 9)):
        done = two_epochs.call("resume", name, "--epoch", "1", "--no-run", "-S", f"fit.num_epochs={epochs}")

        assert done.out == (
            f"params.yaml: build_learner.checkpoint is epoch 1 of {expected}\n"
            f"params.yaml: fit.num_epochs is {epochs}, and was {2 if epochs == 8 else 8}\n"
        ), done.text
    added = f"  checkpoint:\n    rev: {sha}\n    epoch: 1\n"
    edited = before.replace("build_learner:\n", f"build_learner:\n{added}").replace("epochs: 2", "epochs: 9")
    assert (two_epochs.folder / "params.yaml").read_text() == edited


def test_resume_takes_the_params_of_the_run_and_prints_what_differs_from_the_workspace(two_epochs):
    committed = (two_epochs.folder / "params.yaml").read_text()
    two_epochs.edit("params.yaml", "batch_size: 32", "batch_size: 64  # larger")
    two_epochs.edit("params.yaml", "keep: []", "keep: [notes.txt]")
    two_epochs.edit("params.yaml", "  num_workers: 0\n", "")

    done = two_epochs.call("resume", "HEAD", "--epoch", "1", "--no-run", "-S", "fit.seed=7").ok()

    assert [line.removeprefix("params.yaml: ") for line in done.splitlines()[1:]] == [
        "create_artifact_dir.keep is [], and was not set",
        "fit.batch_size is 32, and was 64",
        "fit.num_workers is 0, and was not set",
        "fit.seed is 7, and was 42",
        'create_artifact_dir.keep[0] is not set, and was "notes.txt"',
    ]
    values = YAML(typ="safe").load((two_epochs.folder / "params.yaml").read_text())
    assert values["build_learner"].pop("checkpoint")["epoch"] == 1
    expected = YAML(typ="safe").load(
        committed.replace("num_workers: 0\n  seed: 42", "num_workers: 0\n  seed: 7")
    )
    assert values == expected
    assert "# larger" in (two_epochs.folder / "params.yaml").read_text()


def test_params_of_other_files_that_differ_from_those_of_the_run_are_reported(two_epochs):
    """`learner resume` sets params.yaml only, and a run with other values of these continues another one."""
    lock = two_epochs.folder / "dvc.lock"
    before = lock.read_text()
    content = YAML(typ="safe").load(before)
    content["stages"]["load-data"]["params"]["points.yaml"] = {"scale": 50.0, "size": 2}
    lock.write_text(json.dumps(content))
    sha = two_epochs.add_experiment("scaled")
    lock.write_text(before)
    (two_epochs.folder / "points.yaml").write_text("scale: 1.0\nsize: 2\n")

    done = two_epochs.call("resume", "scaled", "--epoch", "1", "--no-run", "-S", "fit.num_epochs=3")

    remedy = f"To resume with the value of the run, use `git checkout {sha[:12]} -- points.yaml`"
    assert done.err == f"warning: points.yaml: scale is 1.0, and was 50.0. {remedy}\n"
    (two_epochs.folder / "points.yaml").unlink()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["HEAD", "--epoch", "7"], 1, "has no checkpoint of epoch 7; found 1, 2"),
        long(["HEAD~1", "--epoch", "1"], 1, "has no checkpoint of epoch 1; found none"),
        (["HEAD", "--epoch", "2"], 2, "which includes the epochs before the checkpoint, is 2"),
        long(["HEAD", "--epoch", "1", "-S", "fit.num_epoch=3"], 2, "Could not override 'fit.num_epoch'"),
        long(["HEAD", "--epoch", "1", "-S", "fit.batch_size=no"], 2, "fit.batch_size: must be an integer"),
        (["HEAD", "--epoch", "1", "-S", "other.yaml:a=1"], 2, "-S names other.yaml"),
    ],
)
def test_failed_resume_does_not_change_the_params(two_epochs, arguments, code, message):
    before = (two_epochs.folder / "params.yaml").read_bytes()

    done = two_epochs.call("resume", *arguments)

    assert (done.code, done.out, "Traceback" in done.err) == (code, "", False)
    assert message in done.err
    assert (two_epochs.folder / "params.yaml").read_bytes() == before


def test_unknown_revision_is_an_error_with_exit_code_2(two_epochs):
    done = two_epochs.call("resume", "nowhere", "--epoch", "1")

    assert (done.code, done.out) == (2, "")
    message = (
        "error: unknown Git revision 'nowhere': not an experiment, tag, branch or commit of this repository"
    )
    assert done.err.startswith(message)
    assert done.err.count("\n") == 1


def test_params_are_restored_if_build_learner_refuses_the_checkpoint(finished):
    """Only build-learner detects that the weights do not fit a model of another size."""
    model = ("-S", "build_learner.model.hidden_size=3")
    before = (finished.folder / "params.yaml").read_bytes()

    done = finished.call("resume", "HEAD", "--epoch", "1", *model)

    assert (done.code, "Traceback" in done.err) == (1, False), done.text
    assert "build_learner.checkpoint is epoch 1" in done.out
    assert (finished.folder / "params.yaml").read_bytes() == before


def test_checkpoint_missing_from_the_cache_is_fetched_from_a_remote_or_is_an_error(finished, tmp_path):
    finished.ok("git", "tag", "before")
    config = finished.folder / ".dvc/config.local"
    config.write_text(f"[core]\nremote = store\n['remote \"store\"']\nurl = {tmp_path / 'store'}\n")
    finished.dvc("push", "-q").ok()
    shutil.rmtree(finished.folder / ".dvc/cache/files")

    arguments = ("resume", "before", "--epoch", "1", "-S", "fit.num_epochs=3", "--no-run")
    assert finished.call(*arguments).code == 0
    assert "starting after epoch 1" in finished.call("stage", "build-learner").out

    config.unlink()
    done = finished.call(*arguments)

    assert done.code == 1
    assert "is not complete here" in done.err
    assert "`dvc fetch --all-commits`" in done.err


def test_rev_in_params_must_be_a_full_sha_with_an_epoch(two_epochs):
    kept = (two_epochs.folder / "params.yaml").read_text()
    for checkpoint, message in {
        "{rev: good, epoch: 1}": "checkpoint.rev: must be a full SHA, since branches and tags move",
        "{epoch: 1}": "checkpoint: set either rev or path",
        f"{{rev: {'a' * 40}}}": "checkpoint: set epoch too: a rev needs one",
    }.items():
        two_epochs.edit("params.yaml", "build_learner:\n", f"build_learner:\n  checkpoint: {checkpoint}\n")

        done = two_epochs.call("check")

        assert (done.code, message in done.err) == (2, True), done.err
        (two_epochs.folder / "params.yaml").write_text(kept)


def test_checkpoint_path_must_be_a_dependency_and_not_an_output(finished):
    shutil.copytree(finished.folder / "artifacts", finished.folder / "old")
    checkpoint = "build_learner:\n  checkpoint: {path: old, epoch: 1}\n"
    finished.edit("params.yaml", "build_learner:\n", checkpoint)

    assert finished.call("check").out == (
        "dvc.yaml: an edit of old would not rerun build-learner; add to its deps:\n      - old\n"
    )

    finished.edit("dvc.yaml", "      - ${paths.dataset}\n", "      - ${paths.dataset}\n      - old\n")
    assert finished.call("check").code == 0
    assert "starting after epoch 1 of old" in finished.call("stage", "build-learner").out

    finished.edit("params.yaml", "path: old", "path: artifacts/checkpoint")
    assert "an output of this pipeline, which DVC removes" in finished.call("stage", "build-learner").err
