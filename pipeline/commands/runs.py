"""The commands of ``learner runs``: list, inspect, verify and remove run stores."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.envelope import ProblemsFound
from pipeline.commands.options import argument, flag, option
from pipeline.commands.results import FileProblem, RemovedRuns, RunDetails, RunInfo
from pipeline.project.paths import runs_root
from stages.contracts.deliveries import can_be_sent
from stages.contracts.errors import ParamsError, RecordError, RunInUseError, StageError
from stages.contracts.printing import print_line
from stages.contracts.text import format_age, format_size, replace_unprintable
from stages.records.limits import TRAINER_LIMIT
from stages.runs.file_names import CHECKPOINT_FOLDER, STEP_FOLDER, TRAINER, list_epochs, stem_of, trainer_name
from stages.runs.key import differences, format_value, leaves, run_key
from stages.runs.layout import FINISHED_FILE, TELEMETRY_FOLDER, list_logger_folders, lock_of
from stages.runs.manifest import LogLedger, find_damage, read_finished
from stages.runs.overview import Run, State
from stages.runs.overview import runs as all_runs
from stages.runs.store import prune as prune_finished
from stages.runs.store import prune_unfinished, remove_sent_folder
from stages.system.file_lock import hold_lock

app = typer.Typer(
    name="runs",
    help="List, inspect, verify, send and remove run stores, from which interrupted training resumes.",
    no_args_is_help=True,
)
KEY_HELP = "Key of the run, or the beginning of the key."
RESUMABLE = (State.INTERRUPTED, State.KILLED)
LastRun = Annotated[str | None, argument(KEY_HELP, "the latest run", metavar="[KEY]")]
AllRuns = Annotated[str | None, argument(KEY_HELP, "all runs", metavar="[KEY]")]


def describe_run(run: Run) -> str:
    """Return the line of *run*: ``run 3f2a: running, pid 123 on host, epoch 3 step 120, 12:31:05``.

    For a run that can be resumed, the newest checkpoint is added.
    """
    parts = [_format_state(run)]
    if run.owner:
        parts.append(f"pid {run.owner.pid} on {run.owner.host}")
    if run.state is State.FINISHED:
        parts.append(f"{run.epochs} epochs")
    elif run.state is State.RUNNING and not run.has_started:
        parts.append("starting")
    elif run.place:
        parts.append(run.place)
    if run.state in RESUMABLE:
        parts.append(_describe_checkpoint(run))
    return f"run {run.key}: {', '.join([*parts, _format_time(run)])}"


@app.command("list")
def list_runs() -> list[RunInfo]:
    """List the run stores with their state, progress and size.

    Example: learner runs list --json
    """
    runs = all_runs(runs_root())
    if not runs:
        print_line(f"no run in {runs_root()}")
        return []
    header = ("key", "state", "epochs", "last seen at", "time", "size", "age")
    rows = [header, *(_row(run) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print_line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return [to_info(run) for run in runs]


@app.command()
def show(key: LastRun = None) -> RunDetails:
    """Print the entries of a run's key, and how they differ from the current params.yaml and inputs.

    Example: learner runs show 3f2a
    """
    from pipeline.engine.stage_run import read_key_entries

    run = _find_run(key)
    current: str | None = None
    changed: list[str] | None = None
    reason = ""
    try:
        now = read_key_entries()
        current, changed = run_key(now), differences(run.entries, now)
    except StageError as error:
        reason = str(error)
    print_line(describe_run(run))
    print_line(f"in {run.path}, {format_size(run.size)}")
    for name, value in sorted(leaves(run.entries).items()):
        print_line(f"  {name}: {format_value(value)}")
    for line in _describe_differences(current, changed, reason):
        print_line(line)
    return RunDetails(to_info(run), run.entries, run.finished, current, changed)


@app.command()
def prune(
    *,
    keep: Annotated[int, option("Number of finished run stores to keep, the newest.", min=0)] = 3,
    unfinished: Annotated[bool, flag("--all", "Also remove interrupted runs, after a question.")] = False,
    yes: Annotated[bool, flag("--yes", "Remove interrupted runs without a question.")] = False,
) -> RemovedRuns:
    """Remove finished run stores, except for the newest.

    Run stores in which a process is running are never removed.

    Example: learner runs prune --keep 1
    """
    root = runs_root()
    resumable = [run for run in all_runs(root) if run.state in RESUMABLE]
    if unfinished and resumable and not yes:
        for run in resumable:
            print_line(describe_run(run))
        typer.confirm("These runs can be resumed. Remove them?", abort=True, err=True)
    removed = prune_finished(root, keep)
    if unfinished:
        removed += prune_unfinished(root)
    for key in removed:
        print_line(f"removed {key}")
        if (files := root / TELEMETRY_FOLDER / key).exists():
            print_line(f"kept in {files} what no tracker has received. Run `learner runs sync`")
    if not removed:
        print_line("nothing to remove")
    return RemovedRuns(removed)


@app.command()
def sync() -> list[FileProblem]:
    """Send to the trackers what they have not received of finished, interrupted and removed runs.

    Send the values for a server that did not respond, and runs that W&B has stored offline. The arguments
    of a tracker are those in fit.loggers of params.yaml. Exit with code 1 if one fails; then its files stay.

    Example: learner runs sync
    """
    from pipeline.project.params import read_params
    from stages.loggers import send_pending_events

    uses, sent = read_params().fit.loggers, list[FileProblem]()
    for key, folder in list_logger_folders(runs_root()):
        with suppress(RunInUseError), hold_lock(lock_of(runs_root() / key)):
            if not (folder.is_dir() and can_be_sent(folder)):
                continue
            problem = send_pending_events(uses, folder)
            print_line(f"run {key}: {folder.name}: {problem or 'sent'}")
            sent.append(FileProblem(folder.name, problem or None, key))
            remove_sent_folder(runs_root(), folder)
    if any(one.problem for one in sent):
        raise ProblemsFound(sent)
    if not sent:
        print_line("nothing to send")
    return sent


@app.command()
def verify(key: AllRuns = None) -> list[FileProblem]:
    """Verify the size and hash of every checkpoint, log and result of a run, or of all runs.

    Exit with code 1 if a file is damaged. Nothing is changed: `fit` repairs a run when it resumes it.

    Example: learner runs verify 3f2a
    """
    selected = all_runs(runs_root()) if key is None else [_find_run(key)]
    verified = []
    for run in selected:
        for name, problem in _verify_run(run):
            print_line(f"run {run.key}: {name}: {problem or 'intact'}")
            verified.append(FileProblem(name, problem, run.key))
    if any(one.problem for one in verified):
        raise ProblemsFound(verified)
    return verified


def _verify_run(run: Run) -> list[tuple[str, str | None]]:
    """Return the name and problem of each checkpoint and each damaged file, and the count of intact files."""
    finished = read_finished(run.path)
    if finished is None and run.state is State.FINISHED:
        problem = "is corrupt. Run `dvc repro --force fit` with the params of this run to rewrite it"
        return [(FINISHED_FILE, problem), *_verify_checkpoints(run)]
    recorded = finished.files if finished else None
    manifest = LogLedger(run.path).read(run.epochs) if recorded is None else recorded
    damage = find_damage(run.path, manifest)
    count = f"{len(manifest) - len(damage)} files with a recorded hash"
    return [*_verify_checkpoints(run), *damage.items(), *([(count, None)] if manifest else [])]


def _verify_checkpoints(run: Run) -> list[tuple[str, str | None]]:
    """Return the name and problem of each checkpoint, except for those that a running run has removed."""
    from stages.runs.verification import verify_checkpoint

    verdicts: list[tuple[str, str | None]] = []
    folders = (run.path / CHECKPOINT_FOLDER, run.path / STEP_FOLDER)
    trainers = ((folder / trainer_name(epoch), epoch) for folder in folders for epoch in list_epochs(folder))
    for trainer, epoch in sorted(trainers):
        name = str(trainer.relative_to(run.path).with_name(stem_of(TRAINER, epoch)))
        try:
            problem = verify_checkpoint(trainer, epoch, {}).problem
        except (RecordError, OSError) as error:
            problem = str(error)
        if problem is None or trainer.exists() or run.state is not State.RUNNING:
            verdicts.append((name, problem))
    return verdicts or [("no checkpoint yet", None)]


def _describe_differences(current: str | None, changed: list[str] | None, reason: str) -> list[str]:
    if changed is None:
        return [f"not compared with the current params.yaml and inputs: {reason}"]
    if not changed:
        return ["the current params.yaml and inputs have this key: fit uses this store"]
    head = f"the current params.yaml and inputs have the key {current}, which differs in"
    return [head, *(f"  {line}" for line in changed)]


def _find_run(key: str | None) -> Run:
    """Return the run whose key begins with *key*, or the run with the latest activity if *key* is None.

    Raises `ParamsError` if there is no such run, or more than one.
    """
    root = runs_root()
    runs = all_runs(root)
    if not runs:
        raise ParamsError(f"there is no run in {root}. Run `dvc repro` to start one")
    if key is None:
        return runs[0]
    matches = [run for run in runs if run.key.startswith(key)]
    if len(matches) == 1:
        return matches[0]
    keys = ", ".join(run.key for run in matches or runs)
    count = "more than one" if matches else "no"
    raise ParamsError(f"{count} run in {root} has a key that begins with {key!r}. Use one of {keys}")


def _describe_checkpoint(run: Run) -> str:
    """Return the position of the newest checkpoint of *run*, such as ``checkpoint after epoch 3``."""
    after_epoch = (run.epochs + 1, False, 0)
    epoch, is_valid, batch = max([after_epoch, *_read_positions(run.path / STEP_FOLDER)])
    if batch:
        part = "validation" if is_valid else "training"
        return f"checkpoint in epoch {epoch}, after batch {batch} of {part}"
    return f"checkpoint after epoch {run.epochs}" if run.epochs else "no checkpoint yet"


def _read_positions(directory: Path) -> Iterator[tuple[int, bool, int]]:
    """Yield epoch, split (True for validation) and batch of each readable checkpoint in *directory*."""
    from stages.records.formats import read

    for number in list_epochs(directory):
        with suppress(RecordError, OSError, LookupError, TypeError, ValueError):
            record = read(directory / trainer_name(number), keep_data=False, limit=TRAINER_LIMIT)
            place = record.item["place"]
            yield int(place["epoch"]), place["split"] == "valid", int(place["iteration"])


def _format_state(run: Run) -> str:
    return f"{run.state}, stalled?" if run.is_stalled else str(run.state)


def _format_time(run: Run) -> str:
    today = time.strftime("%Y-%m-%d")
    return run.time.strftime("%Y-%m-%d %H:%M:%S").removeprefix(f"{today} ")


def _row(run: Run) -> tuple[str, ...]:
    age = format_age(max(0.0, time.time() - run.last_change))
    return (
        run.key,
        _format_state(run),
        str(run.epochs),
        replace_unprintable(run.place or "-"),
        _format_time(run),
        format_size(run.size),
        age,
    )


def to_info(run: Run) -> RunInfo:
    """Return *run* for a program."""
    beat = run.beat
    return RunInfo(
        key=run.key,
        path=str(run.path),
        state=run.state.value,
        stalled=run.is_stalled,
        pid=run.owner.pid if run.owner else None,
        host=run.owner.host if run.owner else None,
        epochs=run.epochs,
        epoch=beat.epoch if beat else None,
        split=beat.split if beat else None,
        step=beat.step if beat else None,
        time=run.time.isoformat(timespec="seconds"),
        size=run.size,
        age_seconds=round(max(0.0, time.time() - run.last_change), 1),
    )
