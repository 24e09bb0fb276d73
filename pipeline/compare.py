"""What ``learner compare`` does: the runs that were named, in the form that was asked for."""

import typer

from pipeline.compared.arranging import View
from pipeline.compared.gathering import gather
from pipeline.compared.tables import csv_table, json_table, markdown_table, text_table
from stages.contracts.errors import ParamsError

FORMS = {"text": text_table, "json": json_table, "md": markdown_table, "csv": csv_table}


def compare(revs: list[str], view: View, forms: list[str]) -> None:
    """Print the comparison of *revs* as one of `FORMS`, text where none is named.

    Raises `ParamsError` where more than one is, or a rev, metric or key is none.
    """
    if len(forms) > 1:
        raise ParamsError(f"say one of {', '.join(f'--{each}' for each in forms)}")
    write = FORMS[forms[0] if forms else "text"]
    typer.echo(write(gather(revs or None), view), nl=False)
