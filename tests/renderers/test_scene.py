"""The state of the live view: keys, the selection and the values of metrics."""

import pytest

from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.renderers.scene import MetricValues, Selection, View
from stages.renderers.terminal import Key, parse_keys


@pytest.mark.parametrize(
    ("typed", "keys", "rest"),
    [
        ("q", [Key.QUIT], ""),
        ("\x1b[D\x1bOC", [Key.LEFT, Key.RIGHT], ""),
        ("x\x1b[3~\x1b[1;5Aq", [Key.QUIT], ""),  # other keys
        ("ABCD", [], ""),
        ("s\x1b[", [Key.STOP], "\x1b["),
        ("\x1b", [], "\x1b"),
    ],
)
def test_keys_are_parsed_from_the_input_of_a_terminal(typed, keys, rest):
    assert parse_keys(typed) == (keys, rest)


@pytest.mark.parametrize(
    ("keys", "selection"),
    [
        ([Key.RIGHT], Selection(metric=1)),
        ([Key.LEFT], Selection(metric=2)),
        ([Key.RIGHT] * 3, Selection()),
        ([Key.DOWN], Selection(view=View.RECENT)),
        ([Key.UP], Selection(view=View.EPOCHS)),
        ([Key.QUIT], Selection(is_quitting=True)),
        ([Key.QUIT, Key.RIGHT], Selection(metric=1, is_quitting=True)),
        ([Key.QUIT, Key.CANCEL], Selection()),
        ([Key.STOP], Selection()),
    ],
)
def test_keys_change_the_selection(keys, selection):
    result = Selection()
    for key in keys:
        result = result.apply(key, 3)

    assert result == selection


def test_final_values_of_a_finished_split_are_read():
    metric_values, values = MetricValues(), {"Loss": 1.0}
    progress = Progress(1, split=Split.TRAIN, running=lambda: values, latest=dict)
    metric_values.update(progress)
    values["Loss"] = 0.5  # of the last batches of the split, after its last frame
    progress.split, progress.running, progress.latest = (
        Split.VALID,
        lambda: {"Loss": 2.0},
        lambda: {"Loss": 3.0},
    )
    metric_values.update(progress)

    train, valid = (metric_values.get(split, "Loss") for split in Split)

    assert (train.running, train.latest) == (0.5, None)
    assert (valid.running, valid.latest) == (2.0, 3.0)
    assert metric_values.get(Split.VALID, "Accuracy") is None
