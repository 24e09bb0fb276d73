"""Options that several commands have."""

from typing import Annotated, Any

import typer


def flag(name: str, purpose: str, *short: str) -> Any:
    """Return the option *name*, a switch that is off by default, with *purpose* as its help."""
    no_type = ""  # typer would print <bool>
    return typer.Option(name, *short, help=purpose, show_default="off", metavar=no_type)


AsJson = Annotated[bool, flag("--json", "Print JSON instead of text.")]

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
