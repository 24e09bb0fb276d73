"""The commands of ``learner records``: show, verify, convert and compare record files.

A record is printed as a tree on a terminal, and as plain lines in a pipe.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.commands.envelope import ProblemsFound
from pipeline.commands.options import argument, flag, option, report_unwritable
from pipeline.commands.results import FileProblem, RecordContent, RecordDifferences, Written
from stages.contracts.errors import ParamsError, RecordError, closest
from stages.contracts.printing import print_error, print_line, print_text
from stages.contracts.text import join_names
from stages.records.record_tree import Layout, Record, Tree, strip_type_hints
from stages.records.tools.listing import Entry, describe, escape, list_entries, to_rows, totals

if TYPE_CHECKING:
    from stages.learner import Start
    from stages.records.formats import Format
    from stages.records.tools.diff import Difference

app = typer.Typer(
    name="records",
    help="Show, verify, convert and compare files of tensors in Burn's formats and safetensors.",
    no_args_is_help=True,
)
NAMES: dict[Layout, str] = {"burn": "Burn", "torch": "PyTorch"}
NO_NAMES_NOTE = (
    "\nThe format stores no names, so the tensors cannot be listed. Take the names from a directory with\n"
    "learner.json: run `learner records convert FILE OUT.mpk --learner DIRECTORY`, then show OUT.mpk"
)
Limit = Annotated[
    int | None,
    option(
        "The largest number of bytes of content to read.",
        "the larger of 64 MiB and 100 times the file's size",
        min=1,
        metavar="BYTES",
    ),
]


@app.command()
def show(
    file: Annotated[Path, argument("A record in any format, or a .pt or .pth file.")],
    *,
    constants: Annotated[bool, flag("--all", "Also print constants, which are nil.")] = False,
    limit: Limit = None,
) -> RecordContent:
    """Print the names, shapes and dtypes in a record, and its metadata, without loading tensors.

    Example: learner records show artifacts/model.mpk.gz
    """
    from stages.records.formats import find_format, read, read_metadata
    from stages.records.torch_files import is_torch_file, read_state_dict

    form = None if is_torch_file(file) else find_format(file)
    if form is None:
        record = Record(read_state_dict(file))
    elif form.has_names:
        record = read(file, form, keep_data=False, limit=limit)
    else:
        record = Record(None, read_metadata(file, form, limit=limit))
    entry = list_entries(record.item) if form is None or form.has_names else None
    content = summarize(file, form.name if form else "torch", record, entry, constants=constants)
    print_record(content, entry, constants=constants)
    return content


@app.command()
def verify(
    paths: Annotated[list[Path], argument("Records, or directories with records or checkpoints.")],
    *,
    limit: Limit = None,
) -> list[FileProblem]:
    """Read each record and report whether it is intact; exit with code 1 if one is not.

    Example: learner records verify artifacts/checkpoint
    """
    from stages.runs.verification import verify_path

    verified = []
    for path in paths:
        for verdict in verify_path(path, limit=limit):
            verified.append(FileProblem(verdict.name, verdict.problem))
            note = f" ({verdict.note})" if verdict.note else ""
            result = f"wrong: {verdict.problem}" if verdict.problem else f"ok{note}"
            print_line(escape(f"{verdict.name}: {result}"))
    if any(one.problem for one in verified):
        raise ProblemsFound(verified)
    return verified


@app.command()
def convert(
    source: Annotated[Path, argument("The record to read.", metavar="IN")],
    target: Annotated[Path, argument("The file to write.", metavar="OUT")],
    *,
    recorder: Annotated[
        str | None, option("The format of OUT, for example named_mpk or burnpack.", "by its suffix")
    ] = None,
    precision: Annotated[
        Literal["full", "half", "double"] | None, option("The precision of floats and integers.", "unchanged")
    ] = None,
    layout: Annotated[
        Layout | None,
        option(
            "Whose names and axes a .safetensors file OUT has: torch transposes each Linear of Burn.",
            "that of IN, if no axes can differ",
        ),
    ] = None,
    learner: Annotated[
        Path | None,
        option(
            "A directory with learner.json: the model of a .bin file, or of which the layout changes.", "none"
        ),
    ] = None,
    force: Annotated[bool, flag("--force", "Replace OUT if it exists.")] = False,
    limit: Limit = None,
) -> Written:
    """Convert a record to another format, precision or layout.

    Example: learner records convert artifacts/model.mpk.gz model.safetensors --layout burn
    """
    from stages.records.formats import find_format, layout_of, read, write
    from stages.records.precision import PRECISIONS
    from stages.records.tools.conversion import (
        add_types,
        choose_layout,
        convert_record,
        find_lossy_tensors,
        lacks_activations,
        translate_version,
    )

    before = find_format(source)
    after = _format_by_name(recorder) if recorder else find_format(target)
    _check_target(source, target, force=force)
    example = _example(learner, before, after)
    record = read(source, before, like=example, limit=limit)
    found, result_layout = layout_of(record, before), choose_layout(record, before, after, layout)
    fills_activations = before.is_burnpack and not after.is_burnpack and lacks_activations(record.item)
    if result_layout and (found != result_layout or (fills_activations and learner)):
        record = _translate(record, source, found, result_layout, learner)
    elif learner and after.is_burnpack and not before.is_burnpack:
        record = _name_schedule(record, learner)
    record = translate_version(record, source, before, after)
    chosen = PRECISIONS[precision] if precision else None
    if lost := find_lossy_tensors(record, chosen):
        print_error(f"warning: {precision} precision loses bits of {join_names(lost, 1)}")
    result = convert_record(record, after, chosen, result_layout)
    if before.has_names and not after.has_names:
        result = replace(result, item=add_types(result.item, example))
    with report_unwritable(target):
        write(result, target, after, limit=limit)
    return Written([str(target)])


@app.command()
def diff(
    first: Annotated[Path, argument("A record in any format.", metavar="A")],
    second: Annotated[Path, argument("The record to compare it with.", metavar="B")],
    *,
    tolerance: Annotated[
        float, option("The largest absolute difference of values that count as equal.", min=0)
    ] = 0.0,
    ids: Annotated[bool, flag("--ids", "Also compare the ids of parameters.")] = False,
    learner: Annotated[
        Path | None, option("A directory with learner.json, if A or B is a .bin file.", "none")
    ] = None,
    limit: Limit = None,
) -> RecordDifferences:
    """Compare the names, shapes, dtypes and values of two records; exit with code 1 if they differ.

    Example: learner records diff artifacts/model.mpk.gz model.safetensors
    """
    from stages.records.formats import find_format, layout_of, read
    from stages.records.tools.diff import find_differences

    forms = [find_format(path) for path in (first, second)]
    example = _example(learner, *forms)
    records = [
        read(path, form, like=None if form.has_names else example, limit=limit)
        for path, form in zip((first, second), forms, strict=True)
    ]
    if {"burn", "torch"} == {layout_of(record, form) for record, form in zip(records, forms, strict=True)}:
        raise RecordError(
            f"{first} and {second} have the axes of different frameworks. Convert one of them: learner "
            "records convert IN OUT.safetensors --layout torch --learner DIRECTORY"
        )
    items = [record.item for record in records]
    differences = list(find_differences(*items, tolerance=tolerance, ids=ids))
    print_differences(differences)
    result = RecordDifferences(not differences, [difference_row(one) for one in differences])
    if differences:
        raise ProblemsFound(result)
    return result


def _translate(
    record: Record, source: Path, before: Layout | None, after: Layout, learner: Path | None
) -> Record:
    """Return *record*, read from *source* in the layout *before*, in the layout *after*.

    The model in the directory *learner* has the names and axes of both. Raises `RecordError` if it is None.
    """
    from stages.records import load_into, record_of
    from stages.records.recorder import state_record

    if learner is None:
        stated = f"has those of {NAMES[before]}" if before else "does not state whose it has"
        raise RecordError(
            f"OUT would have the names and axes of {NAMES[after]}, and {source} {stated}. Set --learner to a "
            "directory with the learner.json of the model, which has both"
        )
    model = _build_start(learner)[0]
    state = load_into(model, record.item, source=str(source), layout=before).state
    return state_record(state) if after == "torch" else Record(strip_type_hints(record_of(model, state)))


def _name_schedule(record: Record, learner: Path) -> Record:
    """Return *record*, if it is that of a schedule, as the state of the schedule in *learner*."""
    from stages.optim import Scheduler, load_burn_schedule

    item = record.item
    if not (isinstance(item, int | float) or (isinstance(item, dict) and item.keys() == {"schedulers"})):
        return record
    _, _, scheduler = _build_start(learner)
    load_burn_schedule(scheduler, item)
    return replace(record, item=scheduler.burn_state() if isinstance(scheduler, Scheduler) else item)


def example_of(directory: Path) -> Tree:
    """Return the record of the learner in *directory*, as an example of a file without names."""
    from stages.records import from_plain, record_of, to_plain

    return from_plain(to_plain(record_of(_build_start(directory)[0])), str(directory))


def _build_start(directory: Path) -> "Start":
    """Return model, optimizer and schedule of the learner in *directory*, whose parts are all built in."""
    from stages.learner import LearnerSpec

    spec = LearnerSpec.read(directory)
    spec.check_code(
        remedy="`learner records` runs only built-in code. Set save_model.exports: [safetensors] for the "
        "names and axes of PyTorch, or read the file with stages.records.load_file"
    )
    return spec.build(seed=0)


def _example(learner: Path | None, *forms: "Format") -> Tree:
    """Return an example tree if one of *forms* has no names; None otherwise."""
    nameless = [form.suffix for form in forms if not form.has_names]
    if not nameless:
        return None
    if learner is None:
        raise ParamsError(
            f"the format {nameless[0]} stores no names. Set --learner to a directory with the learner.json "
            "of the model"
        )
    return example_of(learner)


def _format_by_name(name: str) -> "Format":
    from stages.records.formats import FORMATS

    if name not in FORMATS:
        raise ParamsError(
            f"no recorder is named {name!r}. Use one of {', '.join(FORMATS)}.{closest(name, FORMATS)}"
        )
    return FORMATS[name]


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    if target.exists() and source.exists() and target.samefile(source):
        raise RecordError(f"{target} is the file to read. Set another file as OUT")
    if target.is_dir():
        raise RecordError(f"{target} is a directory. Set a file as OUT")
    if target.exists() and not force:
        raise RecordError(f"{target} exists. Add --force to replace it")


def summarize(
    file: Path, form: str, record: Record, entry: Entry | None, *, constants: bool
) -> RecordContent:
    """Return the metadata of the record in *file*, and what *entry* lists; with *constants*, also nil."""
    metadata = vars(record.metadata) if record.metadata else None
    head = (str(file), form, file.stat().st_size, metadata, record.extra)
    if entry is None:
        return RecordContent(*head, None)
    sums = totals(entry)
    rows = to_rows(entry, constants=constants)
    return RecordContent(*head, rows, sums.tensors, sums.parameters, sums.nbytes)


def print_record(content: RecordContent, entry: Entry | None, *, constants: bool) -> None:
    """Print *content*, and the entries below *entry*; with *constants*, also nil."""
    print_line(escape(f"{content.file}: {content.format}, {content.size:,} bytes"))
    if metadata := content.metadata:
        types = f"floats {metadata['float']}, integers {metadata['int']}"
        print_line(escape(f"Burn {metadata['version']}, {metadata['settings']} ({types})"))
    for key, text in (content.extra or {}).items():
        print_line(escape(f"{key}: {text}"[:200]))
    if entry is None:
        print_text(NO_NAMES_NOTE)
        return
    counts = f"{content.tensors:,} tensors, {content.parameters:,} parameters"
    print_text(f"{counts}, {content.bytes:,} bytes of tensors\n")
    if not entry.branch:
        print_line(_line(entry))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text
        from rich.tree import Tree as TreeView

        branches = [TreeView("item")]
        for depth, child in _list_below(entry, 0, constants=constants):
            branches[depth + 1 :] = [branches[depth].add(Text(_line(child)))]
        Console().print(branches[0])
    else:
        for depth, child in _list_below(entry, 0, constants=constants):
            print_line("  " * depth + _line(child))


def print_differences(differences: "Sequence[Difference]") -> None:
    """Print a line for each difference, and their number."""
    for one in differences:
        sides = " / ".join(filter(None, (one.first, one.second)))
        line = f"{one.path or 'the item'}: {one.what} ({sides})"
        if one.largest is not None:
            line += f", {one.largest:.6g} apart at most, {one.relative:.2%} of a value"
        print_line(escape(line))
    print_line(f"{len(differences)} differences" if differences else "equal")


def difference_row(one: "Difference") -> dict[str, Any]:
    """Return *one* for a program."""
    return {key: value for key, value in vars(one).items() if value is not None and value != ""}


def _list_below(entry: Entry, depth: int, *, constants: bool) -> Iterator[tuple[int, Entry]]:
    """Yield the entries below *entry* with their depth; with *constants*, also nil."""
    for child in entry.children:
        if constants or not child.constant:
            yield depth, child
            yield from _list_below(child, depth + 1, constants=constants)


def _line(entry: Entry) -> str:
    words = (escape(entry.name), describe(entry), f"id {escape(entry.id)}" if entry.id else "")
    return "  ".join(filter(None, words))
