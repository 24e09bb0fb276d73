"""The commands of `learner` that read a finished run, and what they print."""

import json
import re
import shutil

import pytest

from stages.learner import summary_text
from stages.loggers import read_history


def test_summary_prints_the_table_of_the_finished_run(finished):
    printed = finished.call("summary").out

    assert printed == summary_text(read_history(finished.folder / "artifacts"))
    assert "| Valid | Accuracy | " in printed


def test_summary_reads_logs_of_burn_in_every_line_format(open_project, tmp_path):
    for epoch, lines in enumerate(["0.5\n0.7\n", "0.5,1\n0.7,3\n", "0.5,1\n0.7,1\n0.25,final\n"], start=1):
        folder = tmp_path / f"burn/valid/epoch-{epoch}"
        folder.mkdir(parents=True)
        (folder / "Loss.log").write_text(lines)

    table = json.loads(open_project(tmp_path).call("summary", "burn", "--json").out)["data"]

    assert table["epochs"] == 3
    (row,) = table["metrics"]
    assert (row["split"], row["metric"], row["min"], row["min_epoch"]) == ("Valid", "Loss", 0.25, 3)
    assert (round(row["max"], 6), row["max_epoch"]) == (0.65, 2)


def test_summary_of_a_folder_without_logs_is_refused(open_project, tmp_path):
    (tmp_path / "stages").mkdir()

    refused = open_project(tmp_path).call("summary", "stages")

    assert refused.code == 1
    assert "stages has no logs" in refused.err


def test_evaluate_equals_the_validation_of_the_saved_epoch(finished):
    """Metrics of the training and of the machine are not measured: an evaluation has no learning rate."""
    listed = "[loss, accuracy, learning_rate, iteration_speed]"
    finished.edit("params.yaml", "[loss, accuracy]", listed)
    assert finished.call("evaluate").code == 0

    metrics = json.loads((finished.folder / "artifacts/metrics.json").read_text())["valid"]
    metrics_table = json.loads(finished.call("summary", "--json").out)["data"]["metrics"]
    from_evaluate = {row["metric"]: row["min"] for row in metrics_table if row["split"] == "Test (valid)"}
    assert from_evaluate == metrics


def test_summary_shows_an_evaluation_until_the_model_changes(finished):
    model, other = finished.folder / "artifacts/model.mpk.gz", finished.folder / "other.mpk.gz"
    finished.call("evaluate").ok()
    evaluated = finished.call("summary").out
    shutil.move(model, other)
    finished.call("evaluate", "--model", "other.mpk.gz").ok()
    shutil.copy(other, model)

    assert "Test (valid)" in evaluated
    assert "Test (valid)" not in finished.call("summary").out
    finished.call("evaluate").ok()
    assert finished.call("summary").out == evaluated
    model.write_bytes(b"of a later run")
    assert "Test (valid)" not in finished.call("summary").out


def test_lr_find_suggests_a_rate_and_changes_no_output(finished):
    result = finished.call("lr-find", "--steps", "40", "--output", "curve.tsv")

    header, first, *_ = (finished.folder / "curve.tsv").read_text().splitlines()
    assert "suggested learning rate: " in result.out
    assert (header, first.split("\t")[0]) == ("learning_rate\tloss\tsmoothed", "0.0000001")
    assert finished.call("status").out.count("up to date") == 5


def test_evaluate_refuses_sources_without_data(finished):
    for source, message in (
        ("nowhere", "Use train, valid, test, digits"),
        ("test", "the data has no test split. Use one of train, valid, or set load_data.test_fraction"),
        ("idx:nowhere", "error: --source idx:nowhere: there is no folder 'nowhere'. Correct the path"),
        ("npz:no.npz", "error: --source npz:no.npz: there is no file 'no.npz'. Correct the path"),
    ):
        refused = finished.call("evaluate", "--source", source)
        assert refused.code != 0
        assert message in refused.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min", "1", "--max", "0.1"), "error: --min must be above 0 and below --max; found 1 and 0.1\n"),
        (("--min", "nan"), "error: --min must be above 0 and below --max; found nan and 10\n"),
        (("--steps", "9"), "Invalid value for '--steps': Input should be greater than or equal to 10"),
    ],
)
def test_lr_find_refuses_rates_that_do_not_grow_as_wrong_usage(options, message, finished):
    refused = finished.call("lr-find", *options)

    assert refused.code == 2
    assert message in refused.err


def test_status_reports_the_changed_dependency_of_a_stage(finished):
    assert finished.call("status").out.count("up to date") == 5

    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")

    lines = finished.call("status").out.splitlines()
    assert re.fullmatch(r"fit +version \d+  changed: deps params.yaml \(fit modified\)", lines[3])
    assert lines[-2] == "checkpoints of epoch 1, 2"
    assert re.fullmatch(r"run \w{16}: finished, 2 epochs, [\d: -]+", lines[-1])  # a date if it was yesterday


@pytest.mark.long  # tests/test_fit.py: test_telemetry_is_logged_and_changes_no_number
def test_telemetry_metrics_are_not_dvc_outputs(finished):
    before = finished.files("artifacts/train", "artifacts/valid", "artifacts/metrics.json", "artifacts/plots")
    finished.edit("params.yaml", "[loss, accuracy]", "[loss, accuracy, iteration_speed, cpu_use]")

    assert finished.call("run").code == 0

    tracked = finished.files(
        "artifacts/train", "artifacts/valid", "artifacts/metrics.json", "artifacts/plots"
    )
    assert tracked == before
    assert (finished.folder / "artifacts/telemetry/train/epoch-2/Iteration_Speed.log").exists()


@pytest.mark.long
def test_params_select_optimizer_schedule_metrics_and_early_stopping(finished):
    finished.edit(
        "params.yaml", "kind: adam\n", "kind: muon\n    clipping: {kind: global_norm, max_norm: 1.0}\n"
    )
    finished.edit("params.yaml", "kind: constant", "kind: noam\n    model_size: 64")
    finished.edit(
        "params.yaml", "[loss, accuracy]", "[loss, accuracy, auroc, {kind: top_k, k: 2}, learning_rate]"
    )
    finished.edit("params.yaml", "    batches: 1", "    batches: 2\n    leftover: carry")
    finished.edit(
        "params.yaml", "save_model:", "  early_stopping: {n_epochs: 1}\n  keep: {last: 1}\nsave_model:"
    )

    finished.dvc("repro").ok()

    plots = {path.name for path in (finished.folder / "artifacts/plots").iterdir()}
    assert plots >= {"Loss.tsv", "Accuracy.tsv", "AUROC_[Macro].tsv", "Learning_Rate.tsv"}
