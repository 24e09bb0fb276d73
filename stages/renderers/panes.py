"""What stands in each pane of the live view."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from stages.contracts.events import Progress, Shown
from stages.contracts.history import Split
from stages.renderers.chart import COLOURS
from stages.renderers.plain import value_text
from stages.renderers.readings import Reading, Readings
from stages.renderers.remaining import run_share, split_share
from stages.renderers.selection import VIEWS, Selection

MODES = {Split.TRAIN: "Training", Split.VALID: "Validating"}
STYLES = {split: f"color({colour})" for split, colour in COLOURS.items()}
QUESTION = (("s", "stop after this step"), ("k", "kill at once"), ("c", "cancel: go on"))


@dataclass(frozen=True)
class Scene:
    """All that one frame is drawn from."""

    progress: Progress
    readings: Readings
    selection: Selection
    curves: Sequence[str]
    """The names of the metrics that have curves."""
    chart: Text
    """Of the chosen metric and view."""
    left: tuple[str, str]
    """The time left of the split, and of the run."""
    has_keys: bool

    @property
    def chosen(self) -> str | None:
        """The metric that is plotted; None where there is none."""
        return self.curves[self.selection.metric % len(self.curves)] if self.curves else None


def metrics_text(scene: Scene, width: int, height: int) -> Text:
    """Every metric on both splits, as many as fit, the chosen one among them."""
    names = list(dict.fromkeys([*scene.progress.shown, *scene.readings.metrics()]))
    blocks = [_metric_lines(scene, name, width) for name in names]
    first = 0
    last = names.index(scene.chosen) if scene.chosen in names else 0
    while first < last and sum(map(len, blocks[first : last + 1])) > height:
        first += 1
    lines = [line for block in blocks[first:] for line in block]
    if len(lines) > height:
        lines[height - 1 :] = [Text("…", style="dim")]
    return Text("\n").join(lines)


def _metric_lines(scene: Scene, name: str, width: int) -> list[Text]:
    how = scene.progress.shown.get(name, Shown())
    lines = [Text(name, style="bold underline" if name == scene.chosen else "bold")]
    for split in Split:
        reading = scene.readings.of(split, name)
        if reading is not None:
            lines += _reading_lines(split, reading, how, width)
    return lines


def _reading_lines(split: Split, reading: Reading, how: Shown, width: int) -> list[Text]:
    """``train epoch 97.25 % - batch 96.88 %``, on two lines where it is too long for one."""
    running = f"epoch {value_text(reading.running, how)}"
    head = Text.assemble((f"{split} ", STYLES[split]), running)
    if reading.latest is None:
        return [head]
    latest = f"batch {value_text(reading.latest, how)}"
    whole = head.copy().append(f" - {latest}")
    return [whole] if whole.cell_len <= width else [head, Text(" " * (len(split) + 1) + latest)]


def status_text(scene: Scene) -> Text:
    """The mode, the epoch, the iteration and the items."""
    progress = scene.progress
    mode = MODES[progress.split] if progress.epoch else "Starting"
    if progress.interrupter.should_stop():
        mode = "Stopping"
    text = Text()
    for label, value, end in (
        ("Mode ", f"{mode:<12}", " "),
        ("Epoch ", f"{progress.epoch}/{progress.epochs}", "\n"),
        ("Iteration ", f"{f'{progress.batch}/{progress.batches}':<7}", " "),
        ("Items ", f"{progress.items}", ""),
    ):
        text.append(label, style="dim").append(value).append(end)
    return text


def controls_text(scene: Scene) -> Text:
    """Which keys do what."""
    if not scene.has_keys:
        return Text("no keys: standard input\nis not this terminal", style="dim")
    view = VIEWS.index(scene.selection.view) + 1
    metric = scene.selection.metric % len(scene.curves) + 1 if scene.curves else 0
    text = Text()
    for keys, use in (
        ("← →", f" metric {metric}/{len(scene.curves)}  "),
        ("↑ ↓", f" view {view}/{len(VIEWS)}\n"),
        ("q", "   quit …"),
    ):
        text.append(keys, style="bold").append(use)
    return text


def progress_text(scene: Scene, width: int) -> Text:
    """Two bars: the split of this epoch, and the run."""
    progress = scene.progress
    bars = (
        ("Epoch", split_share(progress), scene.left[0], STYLES[progress.split]),
        ("Run", run_share(progress), scene.left[1], "green"),
    )
    lines = []
    for name, share, left, style in bars:
        tail = f" {100 * share:>3.0f} % {left:>8}"
        room = max(0, width - 6 - len(tail))
        full = int(share * room)
        lines.append(Text.assemble(f"{name:<6}", ("━" * full, style), ("─" * (room - full), "dim"), tail))
    return Text("\n").join(lines)


def plot_title(scene: Scene) -> Text:
    """The metric and the view."""
    return Text(f"{scene.chosen} · {scene.selection.view}" if scene.chosen else "Plot")


def legend_text() -> Text:
    """Which colour is which split."""
    return Text("  ").join(Text(f"━━ {split}", style=STYLES[split]) for split in Split)


def question_text() -> Text:
    """What `q` leads to."""
    return Text("\n").join(Text.assemble((key, "bold"), f"  {meaning}") for key, meaning in QUESTION)
