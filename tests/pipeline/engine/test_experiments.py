"""DVC runs, lists, compares and plots experiments of this pipeline."""

import json

import pytest


def test_dvc_lists_compares_and_plots_an_experiment(finished):
    finished.dvc("exp", "run", "-n", "short", "-S", "fit.num_epochs=1").ok()

    shown = json.loads(finished.dvc("exp", "show", "--json").out)
    names = {exp["name"] for rev in shown for exp in rev["experiments"] or []}
    assert names == {"short"}

    compared = json.loads(finished.dvc("metrics", "diff", "--json", "HEAD").out)["artifacts/metrics.json"]
    assert compared["epoch"] == {"old": 2, "new": 1, "diff": -1}
    assert {"train.Loss", "valid.Accuracy"} <= set(compared)

    plots = json.loads(finished.dvc("plots", "show", "--json").out)["data"]
    files = ("Accuracy.tsv", "Loss.tsv")
    folders = ("", "iterations/train/", "iterations/valid/")
    curves = {f"artifacts/plots/{folder}{file}" for folder in folders for file in files}
    assert set(plots) == {*curves, "artifacts/plots/confusion.tsv"}
    points = plots["artifacts/plots/Loss.tsv"][0]["content"]["data"]["values"]
    assert {point["field"] for point in points} == {"train", "valid"}
    assert {point["epoch"] for point in points} == {"1"}


@pytest.mark.long  # test_isolation.py runs the same command, and sweeps run points in copies
def test_isolated_experiment_runs_the_code_of_its_copy(finished):
    finished.edit("stages/renderers/plain.py", '"epoch ', "\"the copy's epoch ")
    before = finished.files("artifacts", "data", "dvc.lock", "params.yaml")

    text = finished.dvc("exp", "run", "--temp", "-n", "apart", "-S", "fit.num_epochs=1").ok()

    assert "the copy's epoch" in text
    assert finished.files("artifacts", "data", "dvc.lock", "params.yaml") == before
    assert "apart" in finished.dvc("exp", "list").ok()


@pytest.mark.long  # test_params_journal.py overrides the source of `learner run`
def test_data_source_can_be_overridden_on_the_command_line(finished):
    refused = finished.dvc(
        "exp", "run", "-S", "load_data.source.kind=idx", "-S", "load_data.source.path=nowhere"
    )

    assert refused.code != 0
    assert "there is no folder 'nowhere'" in refused.text
