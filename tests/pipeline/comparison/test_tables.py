"""Tables, sort orders and metric directions of runs, and the data of a page."""

import csv
import json
import math
from datetime import date

import pytest
from rich.cells import cell_len

from pipeline.comparison.collection import MAX_POINTS, PlotData, direction_of, parse_matrix, thin
from pipeline.comparison.page import build_page, build_table_data
from pipeline.comparison.plots import empty_confusion_spec
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, ViewOptions, sort_runs
from pipeline.comparison.tables import (
    comparison_values,
    csv_table,
    markdown_table,
    short_names,
    text_table,
)
from stages.contracts.config import Use
from stages.contracts.errors import ParamsError
from stages.contracts.history import Direction
from stages.contracts.text import to_json
from stages.metrics import build_metric
from stages.metrics.registry import BUILT_IN

HOSTILE_NAME = "</script><img src=x onerror=alert(1)>|\x1b[2J\n# no"


def build_run(name, losses, **params):
    series = dict(enumerate(losses, start=1))
    metrics = {"valid/Loss": MetricCurve("valid", "Loss", series, Direction.LOWEST)} if losses else {}
    return RunSummary(name=name, sha=None, params=params, metrics=metrics, epochs=len(losses) or None)


def sort_names(comparison, **view):
    return [each.name for each in sort_runs(comparison, ViewOptions(**view))]


THREE_RUNS = Comparison(
    (
        build_run("a", [3.0, 1.0], rate=0.1),
        build_run("b", [0.5, math.nan], rate=2),
        build_run("c", [], rate="x"),
    )
)


def test_best_value_is_finite_and_delta_is_relative_to_the_baseline():
    a, b, c = THREE_RUNS.runs

    assert (b.metrics["valid/Loss"].best, b.metrics["valid/Loss"].best_epoch) == (0.5, 1)
    assert [THREE_RUNS.delta(each, "valid/Loss") for each in (a, b, c)] == [0.0, -0.5, None]


def test_baseline_of_every_format_is_the_first_run_with_metrics():
    comparison = Comparison((RunSummary("workspace", None), *THREE_RUNS.runs))

    listed = json.loads(to_json(comparison_values(comparison)))
    table = list(csv.DictReader(csv_table(comparison).splitlines()))

    assert listed["baseline"] == build_table_data(comparison, ViewOptions())["baseline"] == "a"
    assert [row["valid/Loss delta"] for row in table] == ["", "0", "-0.5", ""]
    assert [line.split()[5] for line in text_table(comparison).splitlines()[2:4]] == ["0", "-0.500"]
    assert Comparison((RunSummary("workspace", None),)).baseline.name == "workspace"


def build_accuracy_runs(*values):
    runs = (
        RunSummary(
            f"run-{number}",
            None,
            metrics={"valid/Accuracy": MetricCurve("valid", "Accuracy", {1: value}, better)},
        )
        for number, (value, better) in enumerate(values)
    )
    return Comparison(tuple(runs))


@pytest.mark.parametrize("better", Direction)
def test_delta_is_positive_if_a_run_has_the_higher_value(better):
    """The sign does not depend on the better direction, so first value + delta is the value of the run."""
    comparison = build_accuracy_runs(
        (50.0, better), (75.0, better), (20.5, better), (50.0, better), (math.nan, better)
    )
    deltas = ["0", "+25.000", "-29.500", "0", "NaN"]

    _, *lines = text_table(comparison).splitlines()
    _, _, *rows = markdown_table(comparison).splitlines()
    table = list(csv.DictReader(csv_table(comparison).splitlines()))
    listed = json.loads(to_json(comparison_values(comparison)))["runs"]

    assert [line.split()[4] for line in lines] == deltas
    assert [row.split(" | ")[4] for row in rows] == deltas
    assert [row["valid/Accuracy delta"] for row in table] == ["0", "25", "-29.5", "0", "NaN"]
    assert [each["metrics"]["valid/Accuracy"]["delta"] for each in listed] == [0.0, 25.0, -29.5, 0.0, "NaN"]


@pytest.mark.parametrize(
    ("view", "order"),
    [
        ({}, "abc"),
        ({"reverse": True}, "cba"),
        ({"sort": "Loss"}, "bac"),
        ({"sort": "valid/loss", "reverse": True}, "abc"),
        ({"sort": "rate"}, "abc"),
        ({"sort": "rate", "reverse": True}, "cba"),
        ({"sort": "epochs"}, "abc"),
        ({"sort": "name", "reverse": True}, "cba"),
    ],
)
def test_runs_without_a_value_are_sorted_last(view, order):
    assert "".join(sort_names(THREE_RUNS, **view)) == order


@pytest.mark.parametrize("view", [{"sort": "los"}, {"metrics": ("Los",), "sort": None}])
def test_unknown_metric_is_an_error_that_lists_the_known_ones(view):
    with pytest.raises(ParamsError, match="valid/Loss"):
        text_table(THREE_RUNS, ViewOptions(**view))


def test_columns_are_aligned_if_names_have_wide_characters():
    comparison = Comparison((build_run("a", [3.0], kind="mlp"), build_run("精度", [1.0], kind="変換")))

    lines = text_table(comparison).splitlines()

    before_time = cell_len(lines[0].removesuffix("time  cached"))
    assert [cell_len(line.removesuffix("   -  no")) for line in lines[1:]] == [before_time] * 2


def test_metric_without_a_direction_has_no_best_value():
    rate = MetricCurve("train", "Learning Rate", {1: 0.1, 2: 0.2}, None)
    table = json.loads(
        to_json(comparison_values(Comparison((RunSummary("a", None, metrics={rate.name: rate}),))))
    )

    [found] = table["runs"]
    assert (found["metrics"][rate.name]["best"], found["metrics"][rate.name]["last"]) == (None, 0.2)


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (1, 1.0, False),
        (1, True, True),
        (0.0, False, True),
        (1, "1", True),
        (2**53, float(2**53), False),
        (2**53 + 1, float(2**53), True),
        (math.nan, math.nan, False),
        ([1, {"a": 2.0, "b": 3}], [1.0, {"b": 3, "a": 2}], False),
        ([1], [True], True),
    ],
)
def test_params_differ_by_value_and_booleans_are_not_numbers(one, other, differ):
    comparison = Comparison((build_run("a", [], rate=one), build_run("b", [], rate=other)))

    assert bool(comparison.differing) == differ


def test_date_in_a_param_is_text_in_json():
    day = date(2024, 1, 2)
    params = {"since": day, "days": [day, {"last": day}], "flag": True, "none": None, "rate": math.inf}

    [run] = json.loads(to_json(comparison_values(Comparison((build_run("a", [], **params),)))))["runs"]

    text = "2024-01-02"
    assert run["params"] == {**params, "since": text, "days": [text, {"last": text}], "rate": "inf"}


def test_param_is_shown_with_its_shortest_unique_suffix():
    keys = ["fit.seed", "load_data.seed", "fit.batch_size"]

    assert short_names(keys) == {key: key if "seed" in key else "batch_size" for key in keys}


def test_control_characters_and_markup_in_names_are_escaped():
    comparison = Comparison(
        (build_run(HOSTILE_NAME, [1.0], rate=HOSTILE_NAME), build_run("b", [2.0], rate=1))
    )

    text, markdown = text_table(comparison), markdown_table(comparison)
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text + markdown
    assert len(markdown.splitlines()) == 4
    assert "<img" not in markdown.replace("\\<", "")
    assert len(csv_table(comparison).splitlines()) == 3


def test_page_contains_hostile_names_only_as_data():
    plots = {
        HOSTILE_NAME: PlotData({"valid/Loss": [(0, 1.0), (1, math.nan)]}, [("0", "1", 2)]),
        "b": PlotData(),
    }
    comparison = Comparison(
        (build_run(HOSTILE_NAME, [1.0], rate=HOSTILE_NAME), build_run("b", [math.inf], rate=1))
    )

    text = build_page(comparison, plots, ViewOptions())

    assert "<img src=x" not in text
    assert text.count("</script>") == 4
    kept = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(kept)["params"] == {"rate": [HOSTILE_NAME, "1"]}


def test_long_curves_keep_the_same_steps_in_all_runs():
    points = [(step, 0.0) for step in range(MAX_POINTS * 3)]

    kept = [step for step, _ in thin(points)]
    assert kept == list(range(0, MAX_POINTS * 3, 4))
    assert thin(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_direction_of_every_built_in_metric_is_inferred_from_its_name():
    arguments = {"top_k": {"k": 2}, "dice": {"num_classes": 2}, "mean_iou": {"num_classes": 2}}
    named = set(BUILT_IN) - {"scalar"}  # the user names it
    built = [build_metric(Use(kind=kind, **arguments.get(kind, {}))) for kind in named]
    directions = {
        each.name: getattr(each, "better", None) for each in built if not getattr(each, "telemetry", False)
    }

    assert len(directions) > 15
    assert {name: direction_of(name) for name in directions} == directions


def test_direction_of_an_unknown_metric_is_none():
    assert direction_of("Certainty") is None
    assert direction_of("Learning Rate") is None


@pytest.mark.parametrize(
    "name",
    [
        "Brier Score",
        "ContinuousRankedProbabilityScore",
        "Continuous Ranked Probability Score",
        "TweedieDevianceScore",
        "Davies-Bouldin Score",
    ],
)
def test_score_that_measures_an_error_is_better_if_lower(name):
    assert direction_of(name) is Direction.LOWEST


def test_matrix_has_all_cells_or_pairs_with_the_samples_of_their_class():
    few = "actual\tpredicted\tcount\n0\t1\t5\n"

    assert parse_matrix("actual\tpredicted\tcount\tclass_samples\n7\t1\t5\t9\n") == [("7", "1", 5, 9)]
    assert parse_matrix(few) == [("0", "1", 5)]
    assert parse_matrix("") == []


@pytest.mark.parametrize(
    ("cells", "share"),
    [([("0", "1", 3, 12)], "25.0%"), ([("0", "1", 3), ("0", "0", 1)], "75.0%")],
    ids=["most confused pairs", "all cells"],
)
def test_share_is_relative_to_all_samples_of_the_class(cells, share):
    vl_convert = pytest.importorskip("vl_convert")
    columns = ("actual", "predicted", "count", "class_samples")
    spec = empty_confusion_spec()

    spec["data"]["values"] = [{"rev": "a", **dict(zip(columns, cell, strict=False))} for cell in cells]

    assert f"share: {share}" in vl_convert.vegalite_to_svg(spec)
