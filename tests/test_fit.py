"""fit and its run store: what is taken up, what is begun anew, and what is told."""

import json
import shutil

import numpy as np
import pytest

from pipeline.bodies import current_entries
from stages.runs import differences, runs


def trained(project, *options):
    """`dvc repro` with *options*; what it printed."""
    return project.ok("dvc", "repro", *options)


def test_more_epochs_go_on_and_equal_a_run_that_had_them_from_the_start(finished, tmp_path):
    """In the workspace and in an isolated copy."""
    straight, isolated = (finished.copied_to(tmp_path / name) for name in ("straight", "isolated"))
    shutil.rmtree(straight.folder / ".runs")
    for project in (finished, straight):
        project.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")

    texts = [trained(finished), trained(straight)]
    texts.append(isolated.ok("dvc", "exp", "run", "--temp", "-n", "grown", "-S", "fit.num_epochs=3"))

    assert ["goes on after epoch 2" in text for text in texts] == [True, False, True]
    assert finished.files("artifacts", "dvc.lock").keys() == straight.files("artifacts", "dvc.lock").keys()
    tracked = ("artifacts/checkpoint", "artifacts/train", "artifacts/valid", "artifacts/plots", "dvc.lock")
    assert finished.files(*tracked) == straight.files(*tracked)
    ref = isolated.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()[0]
    assert isolated.ok("git", "show", f"{ref}:dvc.lock") == (straight.folder / "dvc.lock").read_text()


def test_a_forced_rerun_of_a_finished_run_trains_again_from_the_start(finished):
    before = finished.files("artifacts/checkpoint", "artifacts/train", "dvc.lock")

    said = trained(finished, "-f", "-s", "fit")

    assert "epoch 1/2" in said
    assert "goes on" not in said
    assert finished.files("artifacts/checkpoint", "artifacts/train", "dvc.lock") == before


def test_a_run_that_was_done_but_not_recorded_is_not_done_again(finished):
    """As after a kill between the end of the training and DVC's record of it."""
    before = finished.files("artifacts/checkpoint", "dvc.lock")
    shutil.rmtree(finished.folder / ".dvc/cache/runs")
    shutil.rmtree(finished.folder / "artifacts/checkpoint")
    (finished.folder / "dvc.lock").unlink()

    said = trained(finished)

    assert "is finished already" in said
    assert finished.files("artifacts/checkpoint", "dvc.lock") == before


def test_fewer_epochs_are_trained_anew(finished):
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 1")

    said = trained(finished)

    assert "epoch 1/1" in said
    assert [path.name for path in (finished.folder / "artifacts/train").iterdir()] == ["epoch-1"]


def test_another_param_is_another_run_and_the_key_says_which(finished, monkeypatch):
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    monkeypatch.chdir(finished.folder)
    [run] = runs(finished.folder / ".runs")

    assert differences(run.entries, current_entries()) == ["params.batch_size: 32 → 64"]
    assert "params.batch_size: 32 → 64" in finished.learner("runs", "show").out


@pytest.mark.parametrize(
    ("old", "new"), [("num_workers: 0", "num_workers: 1"), ("device: auto", "device: cpu")], ids=str
)
def test_what_changes_no_number_is_the_same_run(old, new, finished, monkeypatch):
    finished.edit("params.yaml", old, new)
    monkeypatch.chdir(finished.folder)
    [run] = runs(finished.folder / ".runs")

    assert differences(run.entries, current_entries()) == []


def test_a_disk_that_is_too_small_is_told_before_the_training(finished, monkeypatch, tmp_path):
    from stages.contracts.errors import StageError
    from stages.runs import check_space

    with pytest.raises(StageError, match="make space, or keep fewer"):
        check_space(tmp_path, 10**18)


def test_the_status_tells_of_the_run(finished):
    assert "finished" in finished.ok("learner", "status")


def test_the_confusion_matrix_is_that_of_the_last_validation(finished):
    lines = (finished.folder / "artifacts/plots/confusion.tsv").read_text().splitlines()
    header, *cells = [line.split("\t") for line in lines]
    accuracy = json.loads((finished.folder / "artifacts/metrics.json").read_text())["valid"]["Accuracy"]

    hits = sum(int(count) for actual, given, count in cells if actual == given)
    samples = sum(int(count) for *_, count in cells)
    assert header == ["actual", "given", "count"]
    assert (samples, 100 * hits / samples) == (359, pytest.approx(accuracy))


def test_a_run_with_no_classes_has_an_empty_confusion_matrix(project):
    inputs = np.linspace(0, 1, 64, dtype=np.float32)[:, None]
    np.savez(project.folder / "line.npz", inputs=inputs, targets=2 * inputs)
    project.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: line.npz")
    project.edit("params.yaml", "kind: cnn\n    dropout: 0.5", "kind: mlp_regressor")
    project.edit("params.yaml", "[loss, accuracy]", "[loss]")

    trained(project)

    assert (project.folder / "artifacts/plots/confusion.tsv").read_text() == "actual\tgiven\tcount\n"
    shown = json.loads(project.run("dvc", "plots", "show", "--json").out)
    assert "errors" not in shown
    assert "artifacts/plots/iterations/valid/Loss.tsv" in shown["data"]
