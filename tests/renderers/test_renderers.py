"""Renderers without a terminal, and the choice of the default renderer."""

import logging
import sys

import pytest

from stages import renderers
from stages.contracts.errors import ParamsError
from stages.contracts.events import Progress, Shown
from stages.contracts.history import History, Split, Value
from stages.renderers import LiveRenderer, LogRenderer, NoRenderer, PlainRenderer, default_renderer

HISTORY = History(
    [
        Value(2, Split.TRAIN, "Accuracy", 50.0),
        Value(3, Split.TRAIN, "Loss", 0.5),
        Value(3, Split.TRAIN, "Accuracy", 97.254),
        Value(3, Split.VALID, "Loss", 0.0923),
    ]
)
SHOWN = {"Accuracy": Shown("%")}
PROGRESS = Progress(10, epoch=3, batch=4, batches=8, running=lambda: {"Loss": 0.5}, shown=SHOWN)
LINE = "epoch  3/10 | train: Accuracy 97.25 %, Loss 0.50 | valid: Loss 9.23e-2"
STEP_LINE = "epoch  3/10 | train 4/8 | Loss 0.50"


def show(renderer):
    renderer.start(PROGRESS)
    renderer.log(Split.TRAIN, 3, "Loss", 0.5)
    renderer.step(PROGRESS)
    renderer.epoch_end(PROGRESS, HISTORY)
    renderer.close()


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (PlainRenderer, [LINE]),
        (lambda: PlainRenderer(interval_seconds=0), [STEP_LINE, LINE]),
        (LiveRenderer, [LINE]),
        (NoRenderer, []),
    ],
)
def test_renderer_prints_lines_to_a_pipe(make, lines, capsys):
    """An epoch has one line, and a long epoch one more per interval. A live view prints lines there too."""
    show(make())

    assert capsys.readouterr().out.splitlines() == lines


def test_log_renderer_logs_the_lines_of_the_plain_renderer():
    logger, records = logging.Logger("run"), []  # other tests may have configured those of this process
    logger.addFilter(lambda record: records.append(record) or True)

    show(LogRenderer(logger, interval_seconds=0))

    assert [(each.name, each.levelname, each.getMessage()) for each in records] == [
        ("run", "INFO", STEP_LINE),
        ("run", "INFO", LINE),
    ]


def test_second_close_prints_nothing(capsys):
    renderer = LiveRenderer()
    renderer.start(PROGRESS)
    renderer.epoch_end(PROGRESS, HISTORY)

    renderer.close()
    renderer.close()

    assert capsys.readouterr().out.splitlines() == [LINE]


@pytest.mark.parametrize(
    ("variable", "is_terminal", "term", "kind"),
    [
        (None, True, "xterm", "LiveRenderer"),
        (None, True, "dumb", "PlainRenderer"),
        (None, False, "xterm", "PlainRenderer"),
        ("live", False, "xterm", "LiveRenderer"),
        ("plain", True, "xterm", "PlainRenderer"),
        ("none", True, "xterm", "NoRenderer"),
        ("", False, "xterm", "PlainRenderer"),
    ],
)
def test_variable_or_output_selects_the_default_renderer(variable, is_terminal, term, kind, monkeypatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("LEARNER_RENDERER", raising=False)
    if variable is not None:
        monkeypatch.setenv("LEARNER_RENDERER", variable)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)

    assert type(default_renderer()) is getattr(renderers, kind)


@pytest.mark.parametrize("variable", ["", "live"])
def test_run_of_a_program_without_standard_output_prints_nothing(variable, monkeypatch, capfd):
    monkeypatch.setenv("LEARNER_RENDERER", variable)
    monkeypatch.setattr(sys, "stdout", None)
    renderer = default_renderer()

    renderer.start(PROGRESS)
    renderer.epoch_end(PROGRESS, HISTORY)
    renderer.close()

    assert capfd.readouterr() == ("", "")


def test_error_for_an_unknown_renderer_lists_the_valid_names(monkeypatch):
    monkeypatch.setenv("LEARNER_RENDERER", "tui")

    with pytest.raises(ParamsError, match="LEARNER_RENDERER is 'tui'. Set it to live, plain or none"):
        default_renderer()
