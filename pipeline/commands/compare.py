"""The commands ``learner compare`` and ``learner plot``."""

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pipeline.commands.options import AsJson, argument, flag, option, report_unwritable
from pipeline.commands.results import ComparedRuns, Written
from pipeline.engine.signals import SignalReceived
from stages.contracts.errors import ParamsError, RunInterruptedError
from stages.contracts.printing import print_error, print_line, print_text
from stages.contracts.text import format_megabytes
from stages.system.files import write_text

if TYPE_CHECKING:
    from pipeline.comparison.runs import ViewOptions

Revs = Annotated[
    list[str],
    argument(
        "Experiments, branches, tags, SHAs, or `workspace`.",
        "workspace and all experiments on HEAD",
        metavar="[REV]...",
    ),
]


def compare(
    revs: Revs = [],  # noqa: B006  never changed
    *,
    metric: Annotated[
        list[str], option("Metric to show, as in Loss or valid/Loss; repeatable.", "all of the valid split")
    ] = [],  # noqa: B006  never changed
    sort: Annotated[
        str | None,
        option(
            "Sort by a metric (best run first), a param, name, epochs, time or committed.",
            "the order of the runs",
            metavar="KEY",
        ),
    ] = None,
    reverse: Annotated[bool, flag("--reverse", "Reverse the order of the runs.")] = False,
    as_json: AsJson = False,
    as_md: Annotated[bool, flag("--md", "Print a Markdown table.")] = False,
    as_csv: Annotated[bool, flag("--csv", "Print CSV with full precision.")] = False,
    html: Annotated[
        Path | None, option("Write a page with all curves that works offline.", "none", metavar="FILE")
    ] = None,
    repeats: Annotated[
        bool,
        flag(
            "--repeats", "Show runs that differ in seeds or folds only as one: mean and standard deviation."
        ),
    ] = False,
    watch: Annotated[
        bool, flag("--watch", "Serve the page on this computer, and update it while runs are at work.")
    ] = False,
    port: Annotated[
        int | None, option("Port of the page of --watch.", "a free port", min=1, max=65535)
    ] = None,
    show: Annotated[bool, flag("--open", "Open the page of --html or --watch in the browser.")] = False,
) -> ComparedRuns | None:
    """Compare runs: the params that differ, metrics, epochs, time, and whether the outputs are cached.

    Example: learner compare exp-a exp-b --sort Accuracy --html compare.html
    """
    from pipeline.comparison.collection import PlotReader, summarize
    from pipeline.comparison.runs import ViewOptions, average_repeats
    from pipeline.comparison.tables import comparison_values, csv_table, markdown_table, text_table
    from pipeline.project.revisions.files import read_runs

    view = ViewOptions(tuple(metric), sort, reverse)
    formats = [name for name, is_set in {"json": as_json, "md": as_md, "csv": as_csv}.items() if is_set]
    outputs = [*formats, *(["html"] if html else []), *(["repeats"] if repeats else [])]
    _check_page_options(outputs, port, watch=watch, show=show)
    if watch:
        _serve_page(revs, view, port or 0, show=show)
        return None
    if len(formats) > 1:
        raise ParamsError(
            f"{' and '.join(f'--{form}' for form in formats)} exclude each other. Keep one of them"
        )
    revisions = read_runs(revs or None)
    compared = summarize(revisions)
    shown = average_repeats(compared) if repeats else compared
    result = None
    if html is None or formats:
        write = {"md": markdown_table, "csv": csv_table}.get("".join(formats), text_table)
        print_text(write(shown, view), end="")
        result = ComparedRuns(**comparison_values(shown, view))
    if html is not None:
        from pipeline.comparison.page import build_page

        with report_unwritable(html):
            write_text(html, build_page(shown, PlotReader(revisions), view))
        size = format_megabytes(html.stat().st_size)
        message = f"wrote {html}, {size}. It works offline, without any other file"
        print_line(message, sys.stderr if formats else None)
        if show:
            _open_page(html.resolve().as_uri())
    return result


def plot(
    metric: Annotated[str, argument("Metric: Loss for both splits, valid/Loss for one.")],
    revs: Revs = [],  # noqa: B006  never changed
    *,
    iterations: Annotated[
        bool, flag("--iterations", "Plot the value of every batch, not of every epoch.")
    ] = False,
    svg: Annotated[Path | None, option("Write an SVG image.", "draw in the terminal", metavar="FILE")] = None,
    png: Annotated[Path | None, option("Write a PNG image.", "draw in the terminal", metavar="FILE")] = None,
) -> Written:
    """Plot one metric of several runs, in the terminal or as an image.

    Example: learner plot Loss exp-a exp-b --svg loss.svg
    """
    from pipeline.comparison.plots import plot as draw

    images = {form: path for form, path in {"svg": svg, "png": png}.items() if path is not None}
    with report_unwritable(svg, png):
        draw(metric, revs, images, iterations=iterations)
    return Written([str(path) for path in images.values()])


def _check_page_options(outputs: Sequence[str], port: int | None, *, watch: bool, show: bool) -> None:
    if watch and outputs:
        raise ParamsError(f"--watch and --{outputs[0]} exclude each other. Keep one of them")
    if port is not None and not watch:
        raise ParamsError("--port is that of the page of --watch. Add --watch")
    if show and not watch and "html" not in outputs:
        raise ParamsError("--open needs a page to open. Add --html FILE, or --watch")


def _serve_page(revs: Sequence[str], view: "ViewOptions", port: int, *, show: bool) -> None:
    """Serve the page until a signal arrives. A mistake in the arguments ends the command before that."""
    from pipeline.comparison.page import build_watched_page
    from pipeline.comparison.watch import Watcher, build_server

    watcher = Watcher(revs or None, view)
    build_watched_page(watcher.read())
    with build_server(watcher, port) as server:
        print_line(f"serving the page at {server.address}, which follows the runs. Ctrl-C stops it")
        if show:
            _open_page(server.address)
        try:
            server.serve_forever()
        except SignalReceived as error:
            raise RunInterruptedError(f"{error}: stopped serving {server.address}") from error


def _open_page(address: str) -> None:
    if not webbrowser.open(address):
        print_error(f"no browser could be started: open {address} in a browser")
