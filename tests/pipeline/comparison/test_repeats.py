"""Runs that differ in their seeds only are shown as one, with mean and standard deviation."""

import json
import math
from dataclasses import replace

import pytest

from pipeline.comparison.page import build_table_data
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, ViewOptions, average_repeats
from pipeline.comparison.tables import comparison_values, csv_table, markdown_table, text_table
from stages.contracts.history import Direction
from stages.contracts.text import to_json


def run(name, losses, seconds=None, **params):
    curve = MetricCurve("valid", "Loss", dict(enumerate(losses, start=1)), Direction.LOWEST)
    named = {key.replace("_", ".", 1): value for key, value in params.items()}
    return RunSummary(name, "a" * 40, named, {curve.name: curve}, len(losses), seconds, cached=True)


REPEATS = Comparison(
    (
        run("rate=1,repeat=1", [3.0, 1.0], 2.0, fit_rate=1, fit_seed=1),
        run("rate=2,repeat=1", [3.0, 5.0], fit_rate=2, fit_seed=1),
        run("rate=1,repeat=2", [5.0, 2.0, 0.1], 4.0, fit_rate=1, fit_seed=2),
        run("rate=2,repeat=2", [5.0, 5.0], fit_rate=2, fit_seed=2),
        run("rate=3", [4.2, 1.6], fit_rate=3, fit_seed=1),
    )
)


def test_values_are_means_over_the_epochs_of_all_repeats():
    first, second, alone = average_repeats(REPEATS).runs

    assert [each.name for each in (first, second, alone)] == ["rate=1 (2 runs)", "rate=2 (2 runs)", "rate=3"]
    curve = first.metrics["valid/Loss"]
    assert (dict(curve.series), curve.best, curve.deviation) == ({1: 4.0, 2: 1.5}, 1.5, math.sqrt(0.5))
    assert (first.params, first.epochs, first.seconds) == ({"fit.rate": 1}, 2, 3.0)
    assert second.metrics["valid/Loss"].deviation == math.sqrt(2)
    assert alone == replace(REPEATS.runs[-1], params={"fit.rate": 3})


def test_difference_exceeds_the_noise_if_it_is_larger_than_its_deviation():
    compared = average_repeats(REPEATS)

    assert [compared.exceeds_noise(each, "valid/Loss") for each in compared.runs] == [None, True, None]
    assert compared.delta(compared.runs[1], "valid/Loss") == 2.5  # its deviation is 1.58


def test_every_format_has_the_deviation():
    compared = average_repeats(REPEATS)

    assert text_table(compared).splitlines()[:3] == [
        "run              rate  valid/Loss   best      ±  epoch       Δ  Δ > ±  epochs   time  cached",
        "rate=1 (2 runs)     1       1.500  1.500  0.707      2       0  -           2  3.0 s  yes",
        "rate=2 (2 runs)     2       5.000  4.000  1.414      1  +2.500  yes         2      -  yes",
    ]
    assert "| ± |" in markdown_table(compared)
    assert "valid/Loss deviation" in csv_table(compared).splitlines()[0]
    found = [
        each["metrics"]["valid/Loss"] for each in json.loads(to_json(comparison_values(compared)))["runs"]
    ]
    assert [each.get("exceeds_noise") for each in found] == [None, True, None]
    assert found[0]["deviation"] == pytest.approx(0.7071, abs=1e-4)
    assert "±" in [column["title"] for column in build_table_data(compared, ViewOptions())["columns"]]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_value_of_a_repeat_that_is_not_finite_has_no_finite_mean_and_deviation(value):
    """A step may log any number, and a model of one seed may diverge."""
    repeats = Comparison((run("repeat=1", [3.0, value], fit_seed=1), run("repeat=2", [5.0, 1.0], fit_seed=2)))

    [mean] = average_repeats(repeats).runs

    curve = mean.metrics["valid/Loss"]
    assert (curve.best_epoch, curve.best, curve.deviation) == (1, 4.0, math.sqrt(2))
    assert math.isnan(curve.deviations[2])
    assert "4.000" in text_table(Comparison((mean,)))
    assert json.loads(to_json(comparison_values(Comparison((mean,)))))
    assert build_table_data(Comparison((mean,)), ViewOptions())


def test_mean_of_repeats_is_finite_if_their_sum_is_not():
    """The perplexity of a model that diverges grows to the largest float64."""
    repeats = [run(f"repeat={seed}", [1e308], fit_seed=seed) for seed in (1, 2)]

    [mean] = average_repeats(Comparison(tuple(repeats))).runs

    assert (mean.metrics["valid/Loss"].best, mean.metrics["valid/Loss"].deviation) == (1e308, 0.0)


def test_metric_without_a_value_in_the_same_epoch_of_all_repeats_has_no_mean():
    """A step may log a number in some epochs only."""
    repeats = [run(f"repeat={seed}", [3.0, 2.0], fit_seed=seed) for seed in (1, 2)]
    late = [
        replace(each, metrics=each.metrics | {"valid/late": MetricCurve("valid", "late", {epoch: 1.0}, None)})
        for epoch, each in enumerate(repeats, start=1)
    ]

    [mean] = average_repeats(Comparison(tuple(late))).runs

    assert list(mean.metrics) == ["valid/Loss"]


def test_runs_of_other_code_are_no_repeats():
    first, second = (replace(run("seed", [1.0], fit_seed=seed), inputs=f"code {seed}") for seed in (1, 2))

    assert len(average_repeats(Comparison((first, second))).runs) == 2


def test_run_without_metrics_is_no_repeat():
    """The workspace has none before its first run."""
    workspace = RunSummary("workspace", None, {"fit.seed": 42}, notes=("no stage has run",))
    repeats = [run(f"repeat={seed}", [float(seed)], fit_seed=seed) for seed in (1, 3)]

    shown = average_repeats(Comparison((workspace, *repeats))).runs

    assert [each.name for each in shown] == ["workspace", "repeat=1 (2 runs)"]
    assert shown[1].metrics["valid/Loss"].best == 2.0


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_run_that_is_listed_twice_is_one_repeat(value):
    """An experiment that `dvc exp apply` has copied to the workspace is listed as both."""
    first, second = (run(f"repeat={seed}", [3.0, value + seed - 1], fit_seed=seed) for seed in (1, 2))
    applied = replace(first, name="workspace", sha=None, notes=("params.yaml was edited since",))

    [mean] = average_repeats(Comparison((applied, first, second))).runs

    assert mean.name == "repeat=1 (2 runs)"
    assert mean.notes == ("workspace: params.yaml was edited since",)
    assert repr(mean.metrics["valid/Loss"].last) == repr(value + 0.5)
    assert average_repeats(Comparison((applied, first))).runs[0].name == "repeat=1"


def test_comparison_without_repeats_is_unchanged():
    alone = Comparison(REPEATS.runs[:2])

    assert average_repeats(alone) == alone
    assert "±" not in text_table(alone)


def test_folds_of_a_point_are_one_run():
    folds = [run(f"rate=1,fold={number}", [loss], load_data_folds=2) for number, loss in ((1, 2.0), (2, 4.0))]
    named = [
        replace(each, params={"load_data.folds": 2, "load_data.fold": number})
        for number, each in enumerate(folds, start=1)
    ]

    [mean] = average_repeats(Comparison(tuple(named))).runs

    assert (mean.name, mean.params) == ("rate=1 (2 runs)", {"load_data.folds": 2})
    assert (mean.metrics["valid/Loss"].best, mean.metrics["valid/Loss"].deviation) == (3.0, math.sqrt(2))
