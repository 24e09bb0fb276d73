"""The text of each pane of the live view."""

from rich.text import Text

from stages.contracts.events import Shown
from stages.contracts.history import Split
from stages.renderers.chart import SPLIT_COLORS
from stages.renderers.plain import UNKNOWN, format_metric
from stages.renderers.remaining_time import compute_run_share, compute_split_share
from stages.renderers.scene import VIEWS, MetricValue, Scene

MODES = {Split.TRAIN: "Training", Split.VALID: "Validating"}
SPLIT_STYLES = {split: f"color({color})" for split, color in SPLIT_COLORS.items()}
QUIT_OPTIONS = (("s", "stop after this step"), ("k", "kill at once"), ("c", "cancel: go on"))


def draw_metrics(scene: Scene, width: int, height: int) -> Text:
    """Return the values of each metric on both splits: as many metrics as fit, including the selected one."""
    names = list(dict.fromkeys([*scene.progress.shown, *scene.values.metric_names()]))
    blocks = [_draw_metric(scene, name, width) for name in names]
    first = 0
    last = names.index(scene.metric) if scene.metric in names else 0
    while first < last and sum(map(len, blocks[first : last + 1])) > height:
        first += 1
    lines = [line for block in blocks[first:] for line in block]
    if len(lines) > height:
        lines[height - 1 :] = [Text("…", style="dim")]
    return Text("\n").join(lines)


def _draw_metric(scene: Scene, name: str, width: int) -> list[Text]:
    options = scene.progress.shown.get(name, Shown())
    lines = [Text(name, style="bold underline" if name == scene.metric else "bold")]
    for split in Split:
        value = scene.values.get(split, name)
        if value is not None:
            lines += _draw_value(split, value, options, width)
    return lines


def _draw_value(split: Split, value: MetricValue, options: Shown, width: int) -> list[Text]:
    """Return ``train epoch 97.25 % - batch 96.88 %``, on two lines if one is too long."""
    running = f"epoch {format_metric(value.running, options)}"
    start = Text.assemble((f"{split} ", SPLIT_STYLES[split]), running)
    if value.latest is None:
        return [start]
    latest = f"batch {format_metric(value.latest, options)}"
    line = start.copy().append(f" - {latest}")
    return [line] if line.cell_len <= width else [start, Text(" " * (len(split) + 1) + latest)]


def draw_status(scene: Scene) -> Text:
    """Return the mode, the epoch, the iteration and the items."""
    progress = scene.progress
    mode = MODES[progress.split] if progress.epoch else "Starting"
    if progress.interrupter.should_stop():
        mode = "Stopping"
    text = Text()
    for label, value, end in (
        ("Mode ", f"{mode:<12}", " "),
        ("Epoch ", f"{progress.epoch}/{progress.epochs}", "\n"),
        ("Iteration ", f"{f'{progress.batch}/{progress.batches or UNKNOWN}':<7}", " "),
        ("Items ", f"{progress.items}", ""),
    ):
        text.append(label, style="dim").append(value).append(end)
    return text


def draw_controls(scene: Scene) -> Text:
    """Return the keys and their effects."""
    if not scene.has_keys:
        return Text("no keys: standard input\nis not this terminal", style="dim")
    view = VIEWS.index(scene.selection.view) + 1
    count = len(scene.metric_names)
    metric = scene.selection.metric % count + 1 if count else 0
    text = Text()
    for keys, effect in (
        ("← →", f" metric {metric}/{count}  "),
        ("↑ ↓", f" view {view}/{len(VIEWS)}\n"),
        ("q", "   quit …"),
    ):
        text.append(keys, style="bold").append(effect)
    return text


def draw_progress(scene: Scene, width: int) -> Text:
    """Return two bars: the progress of the current split, and of the run."""
    progress = scene.progress
    bars = (
        ("Epoch", compute_split_share(progress), scene.remaining[0], SPLIT_STYLES[progress.split]),
        ("Run", compute_run_share(progress), scene.remaining[1], "green"),
    )
    lines = []
    for name, share, remaining, style in bars:
        end = f" {100 * share:>3.0f} % {remaining:>8}"
        room = max(0, width - 6 - len(end))
        full = int(share * room)
        lines.append(Text.assemble(f"{name:<6}", ("━" * full, style), ("─" * (room - full), "dim"), end))
    return Text("\n").join(lines)


def draw_plot_title(scene: Scene) -> Text:
    """Return the selected metric and view."""
    return Text(f"{scene.metric} · {scene.selection.view}" if scene.metric else "Plot")


def draw_legend() -> Text:
    """Return the names of the splits in the colors of their curves."""
    return Text("  ").join(Text(f"━━ {split}", style=SPLIT_STYLES[split]) for split in Split)


def draw_quit_options() -> Text:
    """Return the keys of the quit dialog and their effects."""
    return Text("\n").join(Text.assemble((key, "bold"), f"  {effect}") for key, effect in QUIT_OPTIONS)
