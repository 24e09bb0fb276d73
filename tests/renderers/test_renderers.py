"""Showing a run."""

import io

from rich.console import Console

from stages.contracts.events import Progress
from stages.contracts.history import History, Split, Value
from stages.renderers import LiveRenderer, PlainRenderer

HISTORY = History([Value(3, Split.TRAIN, "Accuracy", 97.254), Value(3, Split.VALID, "Loss", 0.0923)])
PROGRESS = Progress(10, epoch=3, batch=4, batches=8, running=lambda: {"Loss": 0.5}, units={"Accuracy": "%"})
LINE = "epoch  3/10 | train: Accuracy 97.25 % | valid: Loss 9.23e-2\n"


def show(renderer):
    renderer.start(PROGRESS)
    renderer.step(PROGRESS)
    renderer.epoch_end(PROGRESS, HISTORY)
    renderer.close()


def test_the_plain_renderer_prints_a_line_an_epoch_and_nothing_else(capsys):
    show(PlainRenderer())

    assert capsys.readouterr().out == LINE


def test_the_live_renderer_draws_the_bar_and_leaves_only_the_line():
    screen = io.StringIO()

    show(LiveRenderer(Console(file=screen, force_terminal=True, width=100)))

    assert "epoch 3/10 train" in screen.getvalue()
    assert "4/8" in screen.getvalue()
    assert "Loss 0.50" in screen.getvalue()
    assert LINE.strip() in screen.getvalue()
    assert "\x1b[?25h" in screen.getvalue()  # the cursor is back
