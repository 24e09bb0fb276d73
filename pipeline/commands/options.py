"""Options that several commands have."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", show_default="off")]

SetParams = Annotated[
    list[str],
    typer.Option(
        "--set-param",
        "-S",
        metavar="KEY=VALUE",
        help="Param to override, in the syntax of `dvc exp run -S`; repeatable.",
        show_default="none",
    ),
]
