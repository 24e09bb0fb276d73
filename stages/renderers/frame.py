"""The layout of the panes in a frame, which has exactly the size of the terminal."""

import io
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.layout import Layout
from rich.panel import Panel
from rich.segment import Segment, SegmentLines
from rich.text import Text

from stages.contracts.text import replace_unprintable
from stages.renderers.panes import (
    draw_controls,
    draw_legend,
    draw_metrics,
    draw_plot_title,
    draw_progress,
    draw_quit_options,
    draw_status,
)
from stages.renderers.scene import Scene

MIN_PLOT_SIZE = (72, 18)
"""Columns and rows that all panes need; a smaller frame has no plot and no controls."""
MIN_PANES_SIZE = (40, 12)
"""Columns and rows that panes need; a smaller frame has lines only."""
SMALL_PANE_ROWS = 4
"""Height of a pane with two lines."""
QUIT_DIALOG_SIZE = (31, 5)

Size = tuple[int, int]
"""Columns and rows."""


class SizedText:
    """A rich renderable whose text is a function of its width and height."""

    def __init__(self, draw: Callable[[int, int], Text]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._draw(options.max_width, options.height or 1)
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
        lines = [[each._replace(text=replace_unprintable(each.text)) for each in line] for line in lines]
        with self._console.capture() as capture:
            self._console.print(SegmentLines(lines, new_lines=True), crop=False, end="")
        return capture.get().split("\n")[:height]

    def _build_quit_dialog(self, size: Size) -> list[list[Segment]]:
        width, height = min(QUIT_DIALOG_SIZE[0], size[0]), min(QUIT_DIALOG_SIZE[1], size[1])
        pane = _build_pane(Text("Quit?"), lambda *_: draw_quit_options(), "bold red")
        lines = SizedText(lambda *_: draw_quit_options())
        options = self._console.options.update_dimensions(width, height)
        return self._console.render_lines(lines if height < QUIT_DIALOG_SIZE[1] else pane, options)


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
    metrics = _build_pane(Text("Metrics"), lambda width, height: draw_metrics(scene, width, height))
    status = _build_pane(Text("Status"), lambda *_: draw_status(scene))
    bars = _build_pane(Text("Progress"), lambda width, _: draw_progress(scene, width))
    progress = Layout(bars, size=SMALL_PANE_ROWS)
    frame = Layout()
    if _fits(MIN_PLOT_SIZE, size):
        upper, lower = Layout(), Layout(size=SMALL_PANE_ROWS)
        metrics_width = _compute_metrics_width(size[0])
        plot = _build_pane(draw_plot_title(scene), lambda *_: scene.chart)
        plot.subtitle, plot.subtitle_align = draw_legend(), "right"
        upper.split_row(Layout(metrics, size=metrics_width), Layout(plot))
        controls = _build_pane(Text("Controls"), lambda *_: draw_controls(scene))
        lower.split_row(Layout(status, size=metrics_width), Layout(controls))
        frame.split_column(upper, lower, progress)
    elif _fits(MIN_PANES_SIZE, size):
        frame.split_column(Layout(metrics), Layout(status, size=SMALL_PANE_ROWS), progress)
    else:
        frame.update(SizedText(lambda width, height: _draw_lines(scene, width, height)))
    return frame


def _build_pane(title: Text, draw: Callable[[int, int], Text], style: str = "dim") -> Panel:
    return Panel(SizedText(draw), title=title, title_align="left", border_style=style)


def _draw_lines(scene: Scene, width: int, height: int) -> Text:
    """Return the content of a frame without panes, the most important lines first."""
    parts = (draw_progress(scene, width), draw_status(scene), draw_metrics(scene, width, max(1, height - 4)))
    return Text("\n").join(parts)


def _overlay(lines: list[list[Segment]], dialog: Sequence[list[Segment]], size: Size) -> list[list[Segment]]:
    """Return *lines* with *dialog* in their center."""
    width = sum(segment.cell_length for segment in dialog[0])
    left, top = (size[0] - width) // 2, (size[1] - len(dialog)) // 2
    result = list(lines)
    for row, line in enumerate(dialog, top):
        before, _, after = Segment.divide(result[row], [left, left + width, size[0]])
        result[row] = [*before, *line, *after]
    return result
