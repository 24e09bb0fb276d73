"""The output of ``learner records``: a tree on a terminal, plain lines in a pipe."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree as TreeView

from stages.records.formats import Format
from stages.records.record_tree import Record
from stages.records.tools.diff import Difference
from stages.records.tools.listing import Entry, describe, escape, totals

NO_NAMES_NOTE = (
    "\nThe format stores no names, so the tensors cannot be listed. Take the names from a directory with\n"
    "learner.json: run `learner records convert FILE OUT.mpk --learner DIRECTORY`, then show OUT.mpk"
)


def summarize(file: Path, form: Format, record: Record, entry: Entry | None) -> dict[str, Any]:
    """Return the metadata and, if *entry* lists the item, the sums of the record in *file*."""
    summary: dict[str, Any] = {
        "file": str(file),
        "format": form.name,
        "size": file.stat().st_size,
        "metadata": vars(record.metadata) if record.metadata else None,
        "extra": record.extra,
    }
    if entry is None:
        return summary
    sums = totals(entry)
    return summary | {"tensors": sums.tensors, "parameters": sums.parameters, "bytes": sums.nbytes}


def print_record(summary: dict[str, Any], entry: Entry | None, *, constants: bool) -> None:
    """Print *summary*, a result of `summarize`, and the entries below *entry*; with *constants*, also nil."""
    typer.echo(escape(f"{summary['file']}: {summary['format']}, {summary['size']:,} bytes"))
    if metadata := summary["metadata"]:
        types = f"floats {metadata['float']}, integers {metadata['int']}"
        typer.echo(escape(f"Burn {metadata['version']}, {metadata['settings']} ({types})"))
    for key, text in (summary["extra"] or {}).items():
        typer.echo(escape(f"{key}: {text}"[:200]))
    if entry is None:
        typer.echo(NO_NAMES_NOTE)
        return
    counts = f"{summary['tensors']:,} tensors, {summary['parameters']:,} parameters"
    typer.echo(f"{counts}, {summary['bytes']:,} bytes of tensors\n")
    if not entry.branch:
        typer.echo(_line(entry))
    elif sys.stdout.isatty():
        view = TreeView("item")
        _draw(entry, view, constants=constants)
        Console().print(view)
    else:
        _print_below(entry, 0, constants=constants)


def print_differences(found: Sequence[Difference]) -> None:
    """Print a line for each difference, and their number."""
    for one in found:
        sides = " / ".join(filter(None, (one.first, one.second)))
        line = f"{one.path or 'the item'}: {one.what} ({sides})"
        if one.largest is not None:
            line += f", {one.largest:.6g} apart at most, {one.relative:.2%} of a value"
        typer.echo(escape(line))
    typer.echo(f"{len(found)} differences" if found else "equal")


def difference_row(one: Difference) -> dict[str, Any]:
    """Return *one* as a JSON row; infinity, which JSON lacks, is the text ``inf``."""
    row = {key: value for key, value in vars(one).items() if value is not None and value != ""}
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}


def _children(entry: Entry, *, constants: bool) -> list[Entry]:
    return [child for child in entry.children if constants or not child.constant]


def _line(entry: Entry) -> str:
    words = (escape(entry.name), describe(entry), f"id {escape(entry.id)}" if entry.id else "")
    return "  ".join(filter(None, words))


def _draw(entry: Entry, branch: TreeView, *, constants: bool) -> None:
    for child in _children(entry, constants=constants):
        _draw(child, branch.add(Text(_line(child))), constants=constants)


def _print_below(entry: Entry, depth: int, *, constants: bool) -> None:
    for child in _children(entry, constants=constants):
        typer.echo("  " * depth + _line(child))
        _print_below(child, depth + 1, constants=constants)
