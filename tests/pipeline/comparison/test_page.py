"""The data of a page: columns for the table, thinned curves that keep their extremes, and safe JSON."""

import base64
import json
import math
import weakref

import numpy as np
import pytest

from pipeline.comparison import plots
from pipeline.comparison.collection import PlotData
from pipeline.comparison.page import MAX_BATCHES, MAX_EPOCHS, build_page, build_table_data, select_epochs
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, ViewOptions
from stages.contracts.history import Direction


def build_curve(values, split="valid", metric="Loss", better=Direction.LOWEST):
    return MetricCurve(split, metric, dict(enumerate(values, start=1)), better)


def build_long_run(seed):
    """Return a run of 1,000 epochs with the metrics of the default params."""
    noise = np.random.default_rng(seed)
    names = [(split, metric) for split in ("train", "valid") for metric in ("Loss", "Accuracy")]
    curves = [build_curve(noise.random(1000).tolist(), *name) for name in names]
    batches = {each.name: list(enumerate(noise.random(1000).tolist())) for each in curves}
    rate = build_curve([0.001] * 1000, "train", "Learning Rate", None)
    confusion = [(str(i), str(j), i * j) for i in range(10) for j in range(10)]
    params = {f"section.param_{number}": float(noise.random()) for number in range(30)}
    run = RunSummary(
        f"run-{seed}", "0" * 40, params, {each.name: each for each in (*curves, rate)}, epochs=1000
    )
    return run, PlotData(batches, confusion)


def build_page_data(count):
    """Return the data in the page of *count* long runs."""
    runs, plots = zip(*map(build_long_run, range(count)), strict=True)
    names = [run.name for run in runs]
    text = build_page(Comparison(runs), dict(zip(names, plots, strict=True)), ViewOptions())
    return read_block(text, "data"), read_block(text, "plots")


def unpack(text):
    """Return the values of a curve."""
    return np.frombuffer(base64.b64decode(text), "<f4")


def read_block(page, name):
    """Return the JSON in the element *name* of *page*."""
    return page.partition(f'id="{name}">')[2].partition("</script>")[0]


class OneAtATime(dict):
    """Plot data by run that is made when it is read, while none that was read before is in memory."""

    def get(self, name, default=None):
        assert not any(reference() for reference in self.values())
        data = PlotData({"valid/Loss": [(step, 0.5) for step in range(3)]}, [("0", "1", 2)])
        self[name] = weakref.ref(data)
        return data


def test_page_is_built_with_the_plot_data_of_one_run_in_memory_at_a_time():
    runs = tuple(build_long_run(seed)[0] for seed in range(3))

    reader = OneAtATime()
    data = json.loads(read_block(build_page(Comparison(runs), reader, ViewOptions()), "plots"))

    assert list(reader) == [run.name for run in runs]
    assert [len(chart["curves"]) for chart in data["charts"]["iterations"]] == [3]
    assert [matrix["numbers"] for matrix in data["confusion"]["runs"]] == [[[2]]] * 3


@pytest.mark.parametrize("count", [4, 40, 400])
def test_plot_of_many_runs_has_a_bounded_number_of_points_with_the_extremes(count):
    values = [*np.random.default_rng(1).random(97).tolist(), 7.0, math.nan, 0.5]
    runs = tuple(
        RunSummary(str(number), None, metrics={"valid/Loss": build_curve(values)}) for number in range(count)
    )
    limit = max(4, 2000 // count)

    drawn = {run.name: plots._reduce(run.metrics["valid/Loss"].series.items(), limit) for run in runs}

    assert sum(map(len, drawn.values())) <= max(2000, 4 * count)
    assert all((98, 7.0) in points and points[-1] == (100, 0.5) for points in drawn.values())


@pytest.mark.parametrize("count", [1, MAX_EPOCHS, MAX_EPOCHS + 1, 1000, 12_345])
def test_page_limits_the_number_of_epochs_and_keeps_all_extremes(count):
    noise = np.random.default_rng(count)
    curves = [build_curve(noise.random(count).tolist(), metric=name) for name in ("Loss", "Error")]

    selected = select_epochs(curves)

    assert selected == sorted(set(selected)) == select_epochs(curves)
    assert len(selected) <= MAX_EPOCHS + 4 * len(curves)
    for each in curves:
        lowest, highest = min(each.series.values()), max(each.series.values())
        assert {1, count, each.best_epoch} <= set(selected)
        assert {lowest, highest} <= {each.series[epoch] for epoch in selected}


def test_non_finite_values_are_not_extremes():
    values = [math.inf, *[1.0] * 999, math.nan]

    assert 1001 not in select_epochs([build_curve(values)])
    assert {2, 1000} <= set(select_epochs([build_curve(values)]))


def test_page_of_300_runs_of_1000_epochs_has_at_most_8_mb():
    few, more = ((sum(map(len, build_page_data(count)))) for count in (1, 5))
    empty = len(build_page(Comparison((RunSummary("a", None),)), {}, ViewOptions()))

    assert empty + 300 * (more - few) / 4 <= 8e6


def test_each_curve_has_a_value_for_each_of_its_steps():
    table, data = map(json.loads, build_page_data(3))

    curves = [curve for charts in data["charts"].values() for chart in charts for curve in chart["curves"]]
    assert {curve["run"] for curve in curves} == {0, 1, 2}
    assert all(len(unpack(curve["y"])) == len(data["steps"][curve["x"]]) for curve in curves)
    assert all(len(data["steps"][curve["x"]]) <= max(MAX_EPOCHS + 20, MAX_BATCHES) for curve in curves)
    assert [len(values) for values in table["params"].values()] == [3] * 30
    valued = [column for column in table["columns"] if column["role"] != "delta"]
    assert all(len(column["shown"]) == len(column["order"]) == 3 for column in valued)


def test_page_keeps_every_epoch_of_a_short_run():
    run = RunSummary("a", None, metrics={"valid/Loss": build_curve([0.3, math.nan, 1 / 3])}, epochs=3)
    text = build_page(Comparison((run,)), {}, ViewOptions())
    data = json.loads(read_block(text, "plots"))

    [chart] = data["charts"]["epochs"]
    assert data["steps"][chart["curves"][0]["x"]] == [1, 2, 3]
    assert unpack(chart["curves"][0]["y"]) == pytest.approx([0.3, math.nan, 1 / 3], rel=1e-7, nan_ok=True)


def test_columns_have_a_role_a_scale_and_a_direction():
    metrics = {"valid/Loss": build_curve([0.5]), "train/Loss": build_curve([0.4], "train")}
    runs = [
        RunSummary(name, None, {"rate": rate, "kind": kind, "flag": rate > 1}, metrics)
        for name, rate, kind in (("a", 1, "x"), ("b", 2.5, "1"))
    ]

    found = {
        each["key"]: each for each in build_table_data(Comparison(tuple(runs)), ViewOptions())["columns"]
    }

    assert [found[key]["scale"] for key in ("rate", "kind", "flag")] == ["number", "category", "category"]
    assert found["valid/Loss best"] | {"shown": 0} == {
        "title": "best",
        "key": "valid/Loss best",
        "role": "best",
        "metric": "valid/Loss",
        "better": "lowest",
        "numeric": True,
        "scale": "number",
        "shown": 0,
        "order": [0.5, 0.5],
        "listed": True,
    }
    assert not found["train/Loss best"]["listed"]


def test_baseline_is_the_first_run_with_a_metric():
    runs = (RunSummary("workspace", None), RunSummary("b", None, metrics={"valid/Loss": build_curve([0.5])}))

    assert build_table_data(Comparison(runs), ViewOptions())["baseline"] == "b"
    assert build_table_data(Comparison(runs[:1]), ViewOptions())["baseline"] == "workspace"


def test_page_has_the_same_bytes_each_time():
    runs, plots = zip(*map(build_long_run, range(2)), strict=True)
    data = dict(zip([run.name for run in runs], plots, strict=True))

    assert build_page(Comparison(runs), data, ViewOptions()) == build_page(
        Comparison(runs), data, ViewOptions()
    )


def test_samples_are_texts_and_images_of_their_run_and_missing_without_any():
    samples = {"valid/epoch-2/mask-1.png": b"PNG", "valid/epoch-2/said-1.txt": b"</script>"}
    runs = tuple(RunSummary(name, None) for name in ("with", "without"))
    plot_data = {"with": PlotData(samples=samples)}

    data = json.loads(read_block(build_page(Comparison(runs), plot_data, ViewOptions()), "plots"))
    none = json.loads(read_block(build_page(Comparison(runs), {}, ViewOptions()), "plots"))

    image = {"path": "valid/epoch-2/mask-1.png", "image": base64.b64encode(b"PNG").decode()}
    assert data["samples"] == [[image, {"path": "valid/epoch-2/said-1.txt", "text": "</script>"}], []]
    assert "samples" not in none
