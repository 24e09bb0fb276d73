"""The commands of ``learner runs``: which run stores there are, what each is made of, and which may go."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.project import runs_root
from stages.checkpoints.file_names import (
    CHECKPOINT_FOLDER,
    STEP_FOLDER,
    TRAINER,
    saved_epochs,
    stem_of,
    trainer_name,
)
from stages.contracts.errors import ParamsError, RecordError, StageError
from stages.runs.key import differences, leaves, run_key, shown
from stages.runs.layout import FINISHED_FILE
from stages.runs.manifest import LogLedger, read_finished
from stages.runs.overview import Run, State
from stages.runs.overview import runs as all_runs
from stages.runs.pruning import prune as prune_finished
from stages.runs.pruning import prune_unfinished
from stages.runs.store import read_json
from stages.runs.verification import damaged

app = typer.Typer(
    name="runs",
    help="The run stores: where training works until it is done, and goes on after it was stopped.",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
Key = Annotated[str | None, typer.Argument(help="A key, or how it begins.")]
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def lines(root: Path) -> list[str]:
    """A line for each run below *root*, the one that showed life last first, as ``status`` prints it."""
    return [f"run {run.key}: {_told(run)}" for run in all_runs(root)]


@app.command("list")
def list_runs(*, as_json: AsJson = False) -> None:
    """Say of each run store whether somebody works in it, how far it is, and what it takes up."""
    found = all_runs(runs_root())
    if as_json:
        typer.echo(json.dumps([_summary(run) for run in found], indent=2))
        return
    if not found:
        typer.echo(f"no run in {runs_root()}")
        return
    header = ("key", "state", "epochs", "last seen at", "time", "size", "age")
    rows = [header, *(_row(run) for run in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def show(key: Key = None, *, as_json: AsJson = False) -> None:
    """Print what a run's key was made of, and what differs from params.yaml and the inputs of now."""
    run = _found(key)
    now, reason = _current_entries()
    changed = None if now is None else differences(run.entries, now)
    current = None if now is None else run_key(now)
    if as_json:
        more = {"entries": run.entries, "finished": run.finished, "current": current, "differences": changed}
        typer.echo(json.dumps({**_summary(run), **more}, indent=2))
        return
    typer.echo(f"run {run.key}: {_told(run)}")
    typer.echo(f"in {run.path}, {_size(run.size)}")
    for name, value in sorted(leaves(run.entries).items()):
        typer.echo(f"  {name}: {shown(value)}")
    for line in _compared(current, changed, reason):
        typer.echo(line)


@app.command()
def prune(
    *,
    keep: Annotated[int, typer.Option(min=0, help="How many finished ones stay, the newest.")] = 3,
    unfinished: Annotated[
        bool, typer.Option("--all", help="Also those that are not finished, and that nobody works in.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove finished run stores but the newest; those that somebody works in always stay."""
    root = runs_root()
    waiting = [run for run in all_runs(root) if run.state in (State.INTERRUPTED, State.DEAD)]
    if unfinished and waiting and not yes:
        for run in waiting:
            typer.echo(f"run {run.key}: {_told(run)}")
        typer.confirm("These can go on where they were stopped. Remove them?", abort=True)
    removed = prune_finished(root, keep)
    if unfinished:
        removed += prune_unfinished(root)
    for each in removed:
        typer.echo(f"removed {each}")
    if not removed:
        typer.echo("nothing to remove")


@app.command()
def verify(key: Key = None) -> None:
    """Verify size and hash of every checkpoint, log and result of a run, or of all runs."""
    chosen = all_runs(runs_root()) if key is None else [_found(key)]
    broken = 0
    for run in chosen:
        for name, problem in _verified(run):
            typer.echo(f"run {run.key}: {name}: {problem or 'intact'}")
            broken += problem is not None
    if broken:
        raise typer.Exit(1)


def _verified(run: Run) -> list[tuple[str, str | None]]:
    """Return name and problem of each checkpoint and damaged file, and how many other files are intact."""
    finished = read_finished(read_json(run.path / FINISHED_FILE))
    if finished is None and run.state is State.FINISHED:
        return [(FINISHED_FILE, "is corrupt: fit makes it again"), *_verified_checkpoints(run)]
    recorded = finished.files if finished else None
    manifest = LogLedger(run.path).read(run.epochs) if recorded is None else recorded
    found = damaged(run.path, manifest)
    count = f"{len(manifest) - len(found)} files with a recorded hash"
    return [*_verified_checkpoints(run), *found.items(), *([(count, None)] if manifest else [])]


def _verified_checkpoints(run: Run) -> list[tuple[str, str | None]]:
    """Return name and problem of each checkpoint; one that a running run has removed since is left out."""
    from stages.records.tools.verification import verify_checkpoint

    found: list[tuple[str, str | None]] = []
    folders = (run.path / CHECKPOINT_FOLDER, run.path / STEP_FOLDER)
    trainers = ((folder / trainer_name(epoch), epoch) for folder in folders for epoch in saved_epochs(folder))
    for trainer, epoch in sorted(trainers):
        name = str(trainer.relative_to(run.path).with_name(stem_of(TRAINER, epoch)))
        try:
            problem = verify_checkpoint(trainer, epoch, {}).problem
        except (RecordError, OSError) as error:
            problem = str(error)
        if problem is None or trainer.exists() or run.state is not State.RUNNING:
            found.append((name, problem))
    return found or [("no checkpoint yet", None)]


def _current_entries() -> tuple[Mapping[str, Any] | None, str]:
    """What a run with params.yaml and the inputs of now is made of; or None, and why that cannot be told."""
    from pipeline.engine.stage_run import read_key_entries

    try:
        return read_key_entries(), ""
    except StageError as error:
        return None, str(error)


def _compared(current: str | None, changed: list[str] | None, reason: str) -> list[str]:
    if changed is None:
        return [f"not compared with params.yaml and the inputs as they are now: {reason}"]
    if not changed:
        return ["params.yaml and the inputs are the same now: fit works in this store"]
    head = f"params.yaml and the inputs as they are now make run {current}, which differs in"
    return [head, *(f"  {line}" for line in changed)]


def _found(key: str | None) -> Run:
    """The one run whose key begins so; with none given, the one that showed life last."""
    root = runs_root()
    there = all_runs(root)
    listed = ", ".join(run.key for run in there) or "none"
    if not there:
        raise ParamsError(f"there is no run in {root}")
    if key is None:
        return there[0]
    matches = [run for run in there if run.key.startswith(key)]
    if not matches:
        raise ParamsError(f"no run in {root} has a key that begins with {key!r}; there: {listed}")
    if len(matches) > 1:
        raise ParamsError(f"{key!r} begins more than one key: {', '.join(run.key for run in matches)}")
    return matches[0]


def _told(run: Run) -> str:
    """State, who, how far and when, as ``running, pid 123 on host, epoch 3 step 120, 12:31:05``."""
    parts = [_state(run)]
    if run.owner:
        parts.append(f"pid {run.owner.pid} on {run.owner.host}")
    if run.state is State.FINISHED:
        parts.append(f"{run.epochs} epochs")
    elif run.state is State.RUNNING and not run.started:
        parts.append("starting")
    elif run.place:
        parts.append(run.place)
    return ", ".join([*parts, _clock(run)])


def _state(run: Run) -> str:
    return f"{run.state}, stalled?" if run.stalled else str(run.state)


def _clock(run: Run) -> str:
    today = time.strftime("%Y-%m-%d")
    return run.time.strftime("%Y-%m-%d %H:%M:%S").removeprefix(f"{today} ")


def _row(run: Run) -> tuple[str, ...]:
    age = _age(max(0.0, time.time() - run.changed))
    return (run.key, _state(run), str(run.epochs), run.place or "-", _clock(run), _size(run.size), age)


def _summary(run: Run) -> dict[str, Any]:
    beat = run.beat
    return {
        "key": run.key,
        "path": str(run.path),
        "state": run.state.value,
        "stalled": run.stalled,
        "pid": run.owner.pid if run.owner else None,
        "host": run.owner.host if run.owner else None,
        "epochs": run.epochs,
        "epoch": beat.epoch if beat else None,
        "split": beat.split if beat else None,
        "step": beat.step if beat else None,
        "time": run.time.isoformat(timespec="seconds"),
        "size": run.size,
        "age_seconds": round(max(0.0, time.time() - run.changed), 1),
    }


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _age(seconds: float) -> str:
    unit, length = next(((unit, length) for unit, length in UNITS if seconds >= length), UNITS[-1])
    return f"{seconds // length:.0f} {unit}"
