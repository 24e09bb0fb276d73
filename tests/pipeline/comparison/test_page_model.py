"""What the script of the page computes: filters, order, groups, differences and the importance of params.

Node.js runs it here; `test_page_browser.py` runs the whole page in a browser.
"""

import json
import math
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest

from pipeline.comparison.page import build_table_data
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, ViewOptions
from pipeline.comparison.tables import format_difference
from stages.contracts.history import Direction
from stages.contracts.text import format_rounded

WEB = files("pipeline.comparison") / "web"
SCRIPT = "".join((WEB / name).read_text() for name in ("model.js", "charts.js"))


def evaluate(script, **values):
    """Return the value of the JavaScript expression *script* with *values* as variables."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    variables = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    program = f"{SCRIPT}\n{variables}process.stdout.write(JSON.stringify({script}));"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def build_column(key, order, role="param", **others):
    scale = (
        "number" if all(isinstance(each, int | float) for each in order if each is not None) else "category"
    )
    shown = ["-" if each is None else str(each) for each in order]
    return {"key": key, "title": key, "role": role, "scale": scale, "order": order, "shown": shown, **others}


def build_metric_columns(metric, best, better="lowest"):
    roles = {metric: "last", f"{metric} best": "best"}
    columns = [build_column(key, best, role, metric=metric, better=better) for key, role in roles.items()]
    return [*columns, {"key": f"{metric} delta", "title": "Δ", "role": "delta", "metric": metric}]


TABLE = {
    "runs": [{"name": name, "sha": None} for name in ("base", "big", "bigger", "failed")],
    "baseline": "base",
    "columns": [
        build_column("run", ["base", "big", "bigger", "failed"], "run"),
        build_column("size", [1, 2, 10, 2]),
        build_column("kind", ["adam", "sgd", "adam", None]),
        *build_metric_columns("valid/Loss", [0.5, 0.25, 0.75, None]),
    ],
    "params": {
        "fit.size": ["1", "2", "10", "2"],
        "model.kind": ["adam", "sgd", "adam", None],
    },
}


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        ("{}", [0, 1, 2, 3]),
        ("{ text: 'BIG' }", [1, 2]),
        ("{ text: 'size=2 kind=sgd' }", [1]),
        ("{ ranges: [{ key: 'size', low: 2, high: null }] }", [1, 2, 3]),
        ("{ ranges: [{ key: 'size', low: 2, high: 9 }, { key: 'valid/Loss', low: 0, high: 1 }] }", [1]),
        ("{ best: { count: 2, metric: 'valid/Loss' } }", [0, 1]),
        ("{ text: 'big', best: { count: 1, metric: 'valid/Loss' } }", [1]),
        ("{ sort: { key: 'valid/Loss delta', ascending: false } }", [2, 0, 1, 3]),
        ("{ sort: { key: 'kind', ascending: true } }", [0, 2, 1, 3]),
    ],
)
def test_filters_apply_before_the_best_runs_are_chosen_and_sorted(change, listed):
    assert evaluate(f"selectRuns(table, {{ ...newState(table), ...{change} }})", table=TABLE) == listed


def test_delta_is_relative_to_the_pinned_baseline():
    script = """[0, 1].map((baseline) => table.runs.map((_, run) =>
        formatDifference(delta(table, 'valid/Loss', run, baseline))))"""

    assert evaluate(script, table=TABLE) == [["0", "-0.250", "+0.250", "-"], ["+0.250", "0", "+0.500", "-"]]


def test_groups_are_in_the_order_of_their_values():
    assert evaluate("groupRuns(table, [0, 1, 2, 3], 'size')", table=TABLE) == [
        ["1", [0]],
        ["2", [1, 3]],
        ["10", [2]],
    ]
    assert evaluate("groupRuns(table, [3, 2, 1], 'kind')", table=TABLE) == [
        ["adam", [2]],
        ["sgd", [1]],
        ["-", [3]],
    ]


def test_differences_are_formatted_as_in_the_other_tables():
    values = [0.0, 1.5, -1.5, 0.01, 0.0100001, 12.3456, -9.87e-5, 1e-12]

    assert evaluate("values.map(formatDifference)", values=values) == [
        format_difference(each) for each in values
    ]


def test_means_are_rounded_as_values_are():
    ties = [0.0625, 3.0625, 0.1875, 0.0078125, -0.0078125, -5.0625]  # exactly between two texts
    values = [0.0, 1.5, -4.5, -450.0, 0.01, 0.0100001, -9.87e-5, 1e-12, 1.0005, *ties]

    assert evaluate("values.map(formatRounded)", values=values) == [
        format_rounded(each, 3) for each in values
    ]


def build_runs_data(*values):
    """Return the data of the table of runs that have a loss with these values, or none for None."""
    curves = [value if value is None else build_curve([value]) for value in values]
    runs = [
        RunSummary(f"run-{number}", None, metrics={} if curve is None else {curve.name: curve})
        for number, curve in enumerate(curves)
    ]
    return build_table_data(Comparison(tuple(runs)), ViewOptions())


def build_curve(values):
    return MetricCurve("valid", "Loss", dict(enumerate(values, start=1)), Direction.LOWEST)


@pytest.mark.parametrize(
    ("baseline", "deltas"),
    [
        (0, ["0", "NaN", "+inf", "-inf", "-"]),
        (1, ["NaN"] * 4 + ["-"]),
        (2, ["-inf", "NaN", "NaN", "-inf", "-"]),
    ],
)
def test_delta_that_is_not_finite_is_not_a_missing_one(baseline, deltas):
    table = build_runs_data(0.5, math.nan, math.inf, -math.inf, None)
    script = "table.runs.map((_, run) => formatDifference(delta(table, 'valid/Loss', run, baseline)))"

    assert evaluate(script, table=table, baseline=baseline) == deltas


@pytest.mark.parametrize(
    ("values", "means"),
    [
        ([0.5, 1.5, None], ["1.000", "1.000", "+0.500"]),
        ([0.5, math.nan, None], ["NaN", "NaN", "NaN"]),
        ([0.5, math.inf], ["inf", "inf", "+inf"]),
    ],
)
def test_mean_of_a_group_includes_the_runs_that_diverged(values, means):
    script = """["valid/Loss", "valid/Loss best", "valid/Loss delta"].map((key) => {
        const value = groupMean(table, columnOf(table, key), [...table.runs.keys()], 0);
        return value === null ? "-" : key.endsWith("delta") ? formatDifference(value) : formatRounded(value);
    })"""

    assert evaluate(script, table=build_runs_data(*values)) == means


def test_ticked_runs_have_different_styles_and_a_free_style_is_used_again():
    script = """(() => {
        const styles = new Map();
        const ticked = names.map((name) => tick(styles, name));
        styles.delete("run-3");
        tick(styles, "another");
        return [ticked.filter(Boolean).length, new Set(styles.values()).size, styles.get("another")];
    })()"""

    assert evaluate(script, names=[f"run-{number}" for number in range(70)]) == [60, 60, 3]


def test_rank_correlation_equals_the_correlation_of_ranks():
    noise = np.random.default_rng(0)
    x, y = noise.integers(0, 5, 40), noise.normal(size=40)
    ranks = [[(np.sum(each < v) + np.sum(each <= v) + 1) / 2 for v in each] for each in (x, y)]

    found = evaluate("rankCorrelation(x, y)", x=x.tolist(), y=y.tolist())

    assert found == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_importance_is_the_corrected_correlation_ratio():
    noise = np.random.default_rng(1)
    labels = noise.integers(0, 3, 60)
    y = labels + noise.normal(size=60)
    groups = [y[labels == label] for label in range(3)]
    within = sum(((group - group.mean()) ** 2).sum() for group in groups) / 57

    found = evaluate("epsilon(labels, y)", labels=labels.tolist(), y=y.tolist())

    assert found == pytest.approx((1 - within / y.var(ddof=1)) ** 0.5)


def test_param_with_an_optimum_is_more_important_than_one_without_effect():
    noise = np.random.default_rng(2)
    rate, seed = np.linspace(-1, 1, 100), noise.permutation(100)
    loss = (rate**2 + 0.05 * noise.normal(size=100)).tolist()
    columns = [build_column("seed", seed.tolist()), build_column("rate", rate.tolist())]
    constant, unique = build_column("same", [1] * 100), build_column("name", [f"n{each}" for each in seed])
    table = {"columns": [*columns, constant, unique, *build_metric_columns("Loss", loss)]}

    found = evaluate("importances(table, 'Loss', [...table.columns[0].order.keys()])", table=table)

    assert [each["column"]["key"] for each in found] == ["rate", "seed", "same", "name"]
    assert found[0]["value"] > 0.9
    assert found[1]["value"] < 0.3
    assert [each["value"] for each in found[2:]] == [None, None]
    assert abs(found[0]["correlation"]) < 0.1


@pytest.mark.parametrize(
    ("better", "order"), [("lowest", "best"), ("highest", "best"), (None, "highest last")]
)
def test_parallel_coordinates_name_the_order_of_their_lines(better, order):
    table = {"columns": build_metric_columns("valid/Score", [0.5, 0.25], better)}
    script = "parallelLabel(table, { titles: ['size', 'kind'], runs: 2 }, 'valid/Score')"

    label = evaluate(script, table=table)

    assert label == f"2 columns of 2 runs, strong lines have the {order} valid/Score"


def build_cell(actual, predicted, count, **others):
    return {"actual": actual, "predicted": predicted, "count": count, **others}


def find_differences(one, other):
    """Return the pair, the two counts and the difference in points of each cell of the difference."""
    script = """differingCells(one, other).map(({ actual, predicted, base, count, points }) =>
        [actual + predicted, base, count, points])"""
    return evaluate(script, one=one, other=other)


def test_difference_of_complete_matrices_has_the_pairs_that_one_of_them_lacks():
    one = [build_cell("0", "0", 6), build_cell("0", "1", 2)]
    other = [build_cell("0", "0", 8), build_cell("1", "1", 5)]

    assert find_differences(one, other) == [["00", 6, 8, 25], ["01", 2, 0, -25], ["11", 0, 5, 100]]


def test_difference_leaves_out_the_pairs_that_a_part_of_a_matrix_lacks():
    part = [build_cell("0", "1", 2, class_samples=10)]
    complete = [build_cell("0", "0", 10), build_cell("2", "1", 3)]

    assert find_differences(part, complete) == [["01", 2, 0, -20]]
    assert find_differences(complete, part) == [["01", 0, 2, 20]]
