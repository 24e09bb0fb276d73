"""The panes put together: one frame, exactly as large as the terminal."""

import io
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.layout import Layout
from rich.panel import Panel
from rich.segment import Segment, SegmentLines
from rich.text import Text

from stages.renderers.panes import (
    Scene,
    controls_text,
    legend_text,
    metrics_text,
    plot_title,
    progress_text,
    question_text,
    status_text,
)

FULL_SIZE = (72, 18)
"""Columns and rows that all panes need."""
PANED_SIZE = (40, 12)
"""Columns and rows below which there are lines only."""
BAND = 4
"""Rows of the panes that hold two lines."""
QUESTION_SIZE = (31, 5)

Size = tuple[int, int]


class Fitted:
    """Text that is written when its room is known."""

    def __init__(self, write: Callable[[int, int], Text]) -> None:
        self._write = write

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._write(options.max_width, options.height or 1)
        text.no_wrap, text.overflow = True, "ellipsis"
        yield text


class Frames:
    """Draws scenes as lines with the terminal's own colour codes."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False)

    def draw(self, scene: Scene, size: Size) -> list[str]:
        """As many lines as *size* has rows, each as wide as it has columns."""
        width, height = size
        options = self._console.options.update_dimensions(width, height)
        lines = self._console.render_lines(_layout(scene, size), options)
        if scene.selection.asking:
            lines = _overlaid(lines, self._question(size), size)
        with self._console.capture() as captured:
            self._console.print(SegmentLines(lines, new_lines=True), crop=False, end="")
        return captured.get().split("\n")[:height]

    def _question(self, size: Size) -> list[list[Segment]]:
        width, height = min(QUESTION_SIZE[0], size[0]), min(QUESTION_SIZE[1], size[1])
        pane = _pane(Text("Quit?"), lambda *_: question_text(), "bold red")
        bare = Fitted(lambda *_: question_text())
        options = self._console.options.update_dimensions(width, height)
        return self._console.render_lines(bare if height < QUESTION_SIZE[1] else pane, options)


def plot_size(size: Size) -> Size | None:
    """The room for the chart in a frame of *size*; None where the frame has no chart."""
    width, height = size
    if not _fits(FULL_SIZE, size):
        return None
    return width - _metrics_width(width) - 4, height - 2 * BAND - 2


def _fits(needed: Size, size: Size) -> bool:
    return needed[0] <= size[0] and needed[1] <= size[1]


def _metrics_width(width: int) -> int:
    return max(40, width * 3 // 10)


def _layout(scene: Scene, size: Size) -> Layout:
    metrics = _pane(Text("Metrics"), lambda width, height: metrics_text(scene, width, height))
    status = _pane(Text("Status"), lambda *_: status_text(scene))
    progress = Layout(_pane(Text("Progress"), lambda width, _: progress_text(scene, width)), size=BAND)
    whole = Layout()
    if _fits(FULL_SIZE, size):
        upper, lower = Layout(), Layout(size=BAND)
        metrics_width = _metrics_width(size[0])
        plot = _pane(plot_title(scene), lambda *_: scene.chart)
        plot.subtitle, plot.subtitle_align = legend_text(), "right"
        upper.split_row(Layout(metrics, size=metrics_width), Layout(plot))
        controls = _pane(Text("Controls"), lambda *_: controls_text(scene))
        lower.split_row(Layout(status, size=metrics_width), Layout(controls))
        whole.split_column(upper, lower, progress)
    elif _fits(PANED_SIZE, size):
        whole.split_column(Layout(metrics), Layout(status, size=BAND), progress)
    else:
        whole.update(Fitted(lambda width, height: _lines(scene, width, height)))
    return whole


def _pane(title: Text, write: Callable[[int, int], Text], style: str = "dim") -> Panel:
    return Panel(Fitted(write), title=title, title_align="left", border_style=style)


def _lines(scene: Scene, width: int, height: int) -> Text:
    """All that there is room for, the most telling first."""
    parts = (progress_text(scene, width), status_text(scene), metrics_text(scene, width, max(1, height - 4)))
    return Text("\n").join(parts)


def _overlaid(lines: list[list[Segment]], popup: Sequence[list[Segment]], size: Size) -> list[list[Segment]]:
    """*popup* in the middle of *lines*."""
    width = sum(segment.cell_length for segment in popup[0])
    left, top = (size[0] - width) // 2, (size[1] - len(popup)) // 2
    laid = list(lines)
    for row, line in enumerate(popup, top):
        before, _, after = Segment.divide(laid[row], [left, left + width, size[0]])
        laid[row] = [*before, *line, *after]
    return laid
