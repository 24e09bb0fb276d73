"""The text of the panes of the live view, and their layout in a frame of exactly the size of the terminal."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console, ConsoleOptions, RenderResult
from rich.layout import Layout
from rich.panel import Panel
from rich.segment import Segment, SegmentLines
from rich.text import Text

from stages.contracts.events import Shown
from stages.contracts.history import Split
from stages.contracts.text import replace_unprintable
from stages.renderers.chart import SPLIT_COLORS
from stages.renderers.plain import UNKNOWN, format_metric
from stages.renderers.scene import VIEWS, MetricValue, Scene, compute_run_share, compute_split_share

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
    iteration = f"{progress.batch}/{progress.batches or UNKNOWN}"
    return Text.assemble(
        ("Mode ", "dim"),
        f"{mode:<12} ",
        ("Epoch ", "dim"),
        f"{progress.epoch}/{progress.epochs}\n",
        ("Iteration ", "dim"),
        f"{iteration:<7} ",
        ("Items ", "dim"),
        f"{progress.items}",
    )


def draw_controls(scene: Scene) -> Text:
    """Return the keys and their effects."""
    if not scene.has_keys:
        return Text("no keys: standard input\nis not this terminal", style="dim")
    view = VIEWS.index(scene.selection.view) + 1
    count = len(scene.metric_names)
    metric = scene.selection.metric % count + 1 if count else 0
    return Text.assemble(
        ("← →", "bold"),
        f" metric {metric}/{count}  ",
        ("↑ ↓", "bold"),
        f" view {view}/{len(VIEWS)}\n",
        ("q", "bold"),
        "   quit …",
    )


def draw_progress(scene: Scene, width: int) -> Text:
    """Return two bars: the progress of the current split, and of the run."""
    progress = scene.progress
    bars = (
        ("Epoch", compute_split_share(progress), scene.remaining[0], SPLIT_STYLES[progress.split]),
        ("Run", compute_run_share(progress), scene.remaining[1], "green"),
    )
    lines = []
    for name, share, remaining, style in bars:
        percent = min(round(100 * share), 99 if share < 1 else 100)
        end = f" {percent:>3} % {remaining:>8}"
        room = max(0, width - 6 - len(end))
        full = int(share * room)
        lines.append(Text.assemble(f"{name:<6}", ("━" * full, style), ("─" * (room - full), "dim"), end))
    return Text("\n").join(lines)


def draw_quit_options() -> Text:
    """Return the keys of the quit dialog and their effects."""
    return Text("\n").join(Text.assemble((key, "bold"), f"  {effect}") for key, effect in QUIT_OPTIONS)


MIN_PLOT_SIZE = (72, 18)
"""Columns and rows that all panes need; a smaller frame has no plot and no controls."""
MIN_PANES_SIZE = (40, 12)
"""Columns and rows that panes need; a smaller frame has lines only."""
SMALL_PANE_ROWS = 4
"""Height of a pane with two lines."""
QUIT_DIALOG_SIZE = (31, 5)

Size = tuple[int, int]
"""Columns and rows."""


@dataclass(frozen=True)
class SizedText:
    """A rich renderable whose text is a function of its width and height."""

    draw: Callable[[int, int], Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.draw(options.max_width, options.height or 1)
        text.plain = replace_unprintable(text.plain, keep="\n")  # before rich measures its width
        text.no_wrap, text.overflow = True, "ellipsis"
        yield text


class FrameBuilder:
    """A converter of scenes to lines with the color codes of the terminal."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False)

    def build(self, scene: Scene, size: Size) -> list[str]:
        """Return one line per row of *size*, each as wide as *size* has columns."""
        width, height = size
        options = self._console.options.update_dimensions(width, height)
        lines = self._console.render_lines(_build_layout(scene, size), options)
        if scene.selection.is_quitting:
            lines = _overlay(lines, self._build_quit_dialog(size), size)
        with self._console.capture() as capture:
            self._console.print(SegmentLines(lines, new_lines=True), crop=False, end="")
        return capture.get().split("\n")[:height]

    def _build_quit_dialog(self, size: Size) -> list[list[Segment]]:
        width, height = min(QUIT_DIALOG_SIZE[0], size[0]), min(QUIT_DIALOG_SIZE[1], size[1])
        pane = _build_pane("Quit?", lambda *_: draw_quit_options(), "bold red")
        options = self._console.options.update_dimensions(width, height)
        return self._console.render_lines(pane.renderable if height < QUIT_DIALOG_SIZE[1] else pane, options)


def compute_plot_size(size: Size) -> Size | None:
    """Return the size of the chart in a frame of *size*; None if the frame has no chart."""
    width, height = size
    if not _fits(MIN_PLOT_SIZE, size):
        return None
    return width - _compute_metrics_width(width) - 4, height - 2 * SMALL_PANE_ROWS - 2


def _fits(needed: Size, size: Size) -> bool:
    return needed[0] <= size[0] and needed[1] <= size[1]


def _compute_metrics_width(width: int) -> int:
    return max(40, width * 3 // 10)


def _build_layout(scene: Scene, size: Size) -> Layout:
    metrics = _build_pane("Metrics", partial(draw_metrics, scene))
    status = _build_pane("Status", lambda *_: draw_status(scene))
    bars = _build_pane("Progress", lambda width, _: draw_progress(scene, width))
    progress = Layout(bars, size=SMALL_PANE_ROWS)
    frame = Layout()
    if _fits(MIN_PLOT_SIZE, size):
        upper, lower = Layout(), Layout(size=SMALL_PANE_ROWS)
        metrics_width = _compute_metrics_width(size[0])
        title = f"{scene.metric} · {scene.selection.view}" if scene.metric else "Plot"
        plot = _build_pane(title, lambda *_: scene.chart)
        legend = (Text(f"━━ {split}", style=SPLIT_STYLES[split]) for split in Split)
        plot.subtitle, plot.subtitle_align = Text("  ").join(legend), "right"
        upper.split_row(Layout(metrics, size=metrics_width), Layout(plot))
        controls = _build_pane("Controls", lambda *_: draw_controls(scene))
        lower.split_row(Layout(status, size=metrics_width), Layout(controls))
        frame.split_column(upper, lower, progress)
    elif _fits(MIN_PANES_SIZE, size):
        frame.split_column(Layout(metrics), Layout(status, size=SMALL_PANE_ROWS), progress)
    else:
        frame.update(SizedText(partial(_draw_lines, scene)))
    return frame


def _build_pane(title: str, draw: Callable[[int, int], Text], style: str = "dim") -> Panel:
    return Panel(
        SizedText(draw), title=Text(replace_unprintable(title)), title_align="left", border_style=style
    )


def _draw_lines(scene: Scene, width: int, height: int) -> Text:
    """Return the content of a frame without panes, the most important lines first."""
    parts = (draw_progress(scene, width), draw_status(scene), draw_metrics(scene, width, max(1, height - 4)))
    return Text("\n").join(parts)


def _overlay(lines: list[list[Segment]], dialog: Sequence[list[Segment]], size: Size) -> list[list[Segment]]:
    """Return *lines* with *dialog* in their center."""
    width = sum(segment.cell_length for segment in dialog[0])
    column, top = (size[0] - width) // 2, (size[1] - len(dialog)) // 2
    result = list(lines)
    for row, line in enumerate(dialog, top):
        before, _, after = Segment.divide(result[row], [column, column + width, size[0]])
        result[row] = [*before, *line, *after]
    return result
