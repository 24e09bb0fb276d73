"""The commands `learner compare` and `learner plot`."""

from pathlib import Path
from typing import Annotated

import typer

from stages.contracts.errors import ParamsError

Revs = Annotated[
    list[str],
    typer.Argument(
        metavar="[REV]...",
        help="Experiments, branches, tags, SHAs, workspace. None: workspace and all experiments on HEAD.",
    ),
]


def compare(
    revs: Revs = [],  # noqa: B006  never changed
    *,
    metric: Annotated[
        list[str],
        typer.Option(help="As Loss or valid/Loss; may be given again. None: those of the valid split."),
    ] = [],  # noqa: B006  never changed
    sort: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A metric (best first), a param, name, epochs, time, committed."),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="A Markdown table.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every value in full.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One page with all curves, which works offline.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Show that page in the browser.")] = False,
) -> None:
    """Put runs beside each other: the params that differ, the metrics, epochs, time, what is in the cache."""
    from pipeline.comparison import showing
    from pipeline.comparison.arranging import View

    view = View(tuple(metric), sort, reverse)
    forms = [form for form, asked in {"json": as_json, "md": as_md, "csv": as_csv}.items() if asked]
    if show and html is None:
        raise ParamsError("--open shows a page: say --html FILE too")
    if html is None or forms:
        showing.compare(revs, view, forms)
    if html is not None:
        showing.write_page(revs, view, html)
    if html is not None and show:
        showing.open_page(html)


def plot(
    metric: Annotated[str, typer.Argument(help="As Loss, for both splits, or valid/Loss.")],
    revs: Revs = [],  # noqa: B006  never changed
    *,
    iterations: Annotated[
        bool, typer.Option("--iterations", help="The value of every batch instead of the epochs'.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Into this file, not the terminal.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="The same.")] = None,
) -> None:
    """Draw one metric of several runs, in the terminal or as an image."""
    from pipeline.comparison.plotting import plot as draw

    images = {form: path for form, path in {"svg": svg, "png": png}.items() if path is not None}
    draw(metric, revs, images, iterations=iterations)
