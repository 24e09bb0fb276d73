"""Frames of the live view, without a terminal."""

import pytest
from rich.cells import cell_len
from rich.text import Text

from stages.contracts.events import Progress, Shown
from stages.contracts.history import Split
from stages.renderers.chart import draw_chart
from stages.renderers.frame import FrameBuilder, compute_plot_size, draw_metrics, draw_progress
from stages.renderers.scene import MetricValues, Scene, Selection


def build_scene(last="长长的名字", **changes):
    values = {"Accuracy": 97.254, "Loss": 0.0923, last: 1234567.0}
    shown = {name: Shown(unit) for name, unit in zip(values, ["%", None, "iter/sec"], strict=True)}
    progress = Progress(10, epoch=3, batch=4, batches=8, items=256, shown=shown)
    progress.running = lambda: values
    progress.latest = lambda: values
    metric_values = MetricValues()
    metric_values.update(progress)
    parts = {"selection": Selection(), "chart": Text(), "has_keys": True, **changes}
    return Scene(
        progress=progress,
        values=metric_values,
        metric_names=list(values),
        remaining=("---", "3 mins"),
        **parts,
    )


def test_numbers_are_formatted_as_in_burn():
    text = draw_metrics(build_scene(), 36, 20).plain.splitlines()

    assert text[:4] == [
        "Accuracy",
        "train epoch 97.25 % - batch 97.25 %",
        "Loss",
        "train epoch 9.23e-2 - batch 9.23e-2",
    ]
    assert text[5:] == ["train epoch 1234567.00 iter/sec", "      batch 1234567.00 iter/sec"]


@pytest.mark.parametrize(
    ("batch", "percent"), [(0, "  0 %"), (290, " 29 %"), (999, " 99 %"), (1000, "100 %")]
)
def test_only_a_finished_part_has_100_percent(batch, percent):
    scene = build_scene()
    scene.progress.batch, scene.progress.batches = batch, 1000

    assert f" {percent} " in draw_progress(scene, 60).plain.splitlines()[0]


def test_selected_metric_is_visible_in_a_small_pane():
    text = draw_metrics(build_scene(selection=Selection(metric=2)), 36, 4).plain

    assert "长长的名字" in text
    assert len(text.splitlines()) <= 4


@pytest.mark.parametrize("is_quitting", [False, True])
@pytest.mark.parametrize(
    "size", [(160, 48), (80, 24), (72, 18), (71, 18), (60, 12), (40, 12), (39, 11), (20, 4), (9, 2), (1, 1)]
)
def test_frame_has_exactly_the_size_of_the_terminal(size, is_quitting):
    room = compute_plot_size(size)
    drawn = draw_chart({Split.TRAIN: [(1, 0.5), (9, 0.1)]}, *room) if room else Text()

    lines = FrameBuilder().build(build_scene(chart=drawn, selection=Selection(is_quitting=is_quitting)), size)

    widths = [cell_len(Text.from_ansi(line).plain) for line in lines]
    assert widths == [size[0]] * size[1]


@pytest.mark.parametrize("name", ["👩‍🔬", "a\u200db", "\u202eabc", "e\u0301te\u0301"])
def test_frame_has_exactly_the_size_of_the_terminal_with_invisible_characters(name):
    lines = FrameBuilder().build(build_scene(name, selection=Selection(metric=2)), (80, 24))

    assert [cell_len(Text.from_ansi(line).plain) for line in lines] == [80] * 24
