"""What ``learner compare`` does: the runs that were named, in the form that was asked for."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

import typer

from pipeline.comparison.arranging import View
from pipeline.comparison.gathering import compared, gather, sources
from pipeline.comparison.page import page
from pipeline.comparison.points import drawn
from pipeline.comparison.tables import csv_table, json_table, markdown_table, text_table
from stages.contracts.errors import ParamsError
from stages.contracts.files import write_text

FORMS = {"text": text_table, "json": json_table, "md": markdown_table, "csv": csv_table}


def compare(revs: Sequence[str], view: View, forms: Sequence[str]) -> None:
    """Print the comparison of *revs* as one of `FORMS`, text where none is named.

    Raises `ParamsError` where more than one is, or a rev, metric or key is none.
    """
    if len(forms) > 1:
        raise ParamsError(f"say one of {', '.join(f'--{each}' for each in forms)}")
    write = FORMS[forms[0] if forms else "text"]
    typer.echo(write(gather(revs or None), view), nl=False)


def write_page(revs: Sequence[str], view: View, path: Path) -> None:
    """Write the comparison of *revs* to *path* as one page that works offline. Raises as `compare` does."""
    found = sources(revs or None)
    write_text(path, page(compared(found), drawn(found), view))
    typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB: it needs no other file and no network")


def open_page(path: Path) -> None:
    """Show *path* in the user's browser."""
    if not webbrowser.open(path.resolve().as_uri()):
        typer.echo(f"no browser could be started here: open {path} in one", err=True)
