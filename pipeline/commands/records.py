"""The commands of ``learner records``: what is in a file of state, whether it is whole, other forms of it."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stages.contracts.errors import ParamsError, RecordError, closest

if TYPE_CHECKING:
    from stages.records.formats import Format
    from stages.records.record_tree import Tree

app = typer.Typer(
    name="records",
    help="Look into files of state, verify, convert and compare them: ours, Burn's, safetensors.",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="BYTES",
        help="Read content of up to so many bytes. The default is 64 MiB, or 100 times the file's size.",
    ),
]


class PrecisionName(StrEnum):
    """Burn's three."""

    full = "full"
    half = "half"
    double = "double"


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A record of any form.")],
    *,
    as_json: AsJson = False,
    constants: Annotated[bool, typer.Option("--all", help="Constants too, which are nil.")] = False,
    limit: Limit = None,
) -> None:
    """Print the names, shapes and dtypes in a record, and what wrote it. Loads no tensor."""
    from pipeline.record_view import print_record, summarize
    from stages.records.formats import find_format, read, read_metadata
    from stages.records.record_tree import Record
    from stages.records.tools.listing import list_entries, to_rows

    form = find_format(file)
    if form.has_names:
        record = read(file, form, keep_data=False, limit=limit)
        entry = list_entries(record.item)
    else:
        record, entry = Record(None, read_metadata(file, form, limit=limit)), None
    told = summarize(file, form, record, entry)
    if as_json:
        entries = None if entry is None else to_rows(entry, constants=constants)
        typer.echo(json.dumps(told | {"entries": entries}, indent=2))
    else:
        print_record(told, entry, constants=constants)


@app.command()
def verify(
    paths: Annotated[
        list[Path], typer.Argument(help="Records, or directories with records and checkpoints.")
    ],
    *,
    limit: Limit = None,
) -> None:
    """Read each record and report whether it is intact; exit 1 if one is not."""
    from stages.records.tools.listing import escape
    from stages.records.tools.verification import verify_path

    wrong = 0
    for path in paths:
        for verdict in verify_path(path, limit=limit):
            wrong += verdict.problem is not None
            note = f" ({verdict.note})" if verdict.note else ""
            told = f"wrong: {verdict.problem}" if verdict.problem else f"ok{note}"
            typer.echo(escape(f"{verdict.name}: {told}"))
    if wrong:
        raise typer.Exit(1)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN")],
    target: Annotated[Path, typer.Argument(metavar="OUT")],
    *,
    recorder: Annotated[
        str | None, typer.Option(help="OUT's form, where its suffix does not say it: named_mpk, burnpack …")
    ] = None,
    precision: Annotated[
        PrecisionName | None, typer.Option(help="Of floats and integers; as they are without this.")
    ] = None,
    learner: Annotated[
        Path | None,
        typer.Option(help="A directory with learner.json, which knows the names that .bin lacks."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    limit: Limit = None,
) -> None:
    """Write a record in another form, or in another precision."""
    from stages.records.formats import find_format, read, write
    from stages.records.tools.conversion import PRECISIONS, add_types, convert_record, find_lossy_tensors

    before = find_format(source)
    after = _named_format(recorder) if recorder else find_format(target)
    _check_target(source, target, force=force)
    example = _example(learner, before, after)
    record = read(source, before, like=example, limit=limit)
    chosen = PRECISIONS[precision] if precision else None
    if lost := find_lossy_tensors(record, chosen):
        what = f"{lost[0]} and {len(lost) - 1} more" if len(lost) > 1 else lost[0]
        typer.echo(f"warning: {precision} precision loses bits of {what}", err=True)
    made = convert_record(record, after, chosen)
    if before.has_names and not after.has_names:
        made = replace(made, item=add_types(made.item, example))
    write(made, target, after, limit=limit)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A")],
    second: Annotated[Path, typer.Argument(metavar="B")],
    *,
    tolerance: Annotated[float, typer.Option(min=0, help="How far apart two equal values may be.")] = 0.0,
    ids: Annotated[bool, typer.Option("--ids", help="The ids of parameters count too.")] = False,
    learner: Annotated[
        Path | None, typer.Option(help="A directory with learner.json, where A or B is a .bin file.")
    ] = None,
    as_json: AsJson = False,
    limit: Limit = None,
) -> None:
    """Compare two records, of any two forms: names, shapes, dtypes, values. Exit 1 where they differ."""
    from pipeline.record_view import difference_row, print_differences
    from stages.records.formats import find_format, read
    from stages.records.tools.diff import find_differences

    forms = [find_format(path) for path in (first, second)]
    example = _example(learner, *forms)
    items = [
        read(path, form, like=None if form.has_names else example, limit=limit).item
        for path, form in zip((first, second), forms, strict=True)
    ]
    found = list(find_differences(*items, tolerance=tolerance, ids=ids))
    if as_json:
        rows = [difference_row(one) for one in found]
        typer.echo(json.dumps({"equal": not found, "differences": rows}, indent=2))
    else:
        print_differences(found)
    if found:
        raise typer.Exit(1)


def example_of(directory: Path) -> "Tree":
    """The record of the learner in *directory*, as an example of what a file without names holds."""
    from stages.learner import Blueprint
    from stages.records import from_plain, record_of, to_plain

    model, _, _ = Blueprint.read(directory).build(seed=0)
    return from_plain(to_plain(record_of(model)), str(directory))


def _example(learner: Path | None, *forms: "Format") -> "Tree":
    """An example tree where one of *forms* has no names; None where all have."""
    nameless = [form.suffix for form in forms if not form.has_names]
    if not nameless:
        return None
    if learner is None:
        raise ParamsError(
            f"a {nameless[0]} file has no names in it: say with --learner DIRECTORY where the "
            "learner.json is that knows them"
        )
    return example_of(learner)


def _named_format(name: str) -> "Format":
    from stages.records.formats import FORMATS

    if name not in FORMATS:
        raise ParamsError(f"no recorder is called {name!r}: {', '.join(FORMATS)}.{closest(name, FORMATS)}")
    return FORMATS[name]


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    if target.exists() and source.exists() and target.samefile(source):
        raise RecordError(f"{target} is the file that is to be read: give another name for what is written")
    if target.is_dir():
        raise RecordError(f"{target} is a directory: give the name of a file")
    if target.exists() and not force:
        raise RecordError(f"{target} is there already: --force replaces it")
