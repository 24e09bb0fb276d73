"""What ``learner sweep`` does: plan, run what is not done, tell how each point ended, compare."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer

from pipeline.comparison.gathering import gather
from pipeline.comparison.tables import text_table
from pipeline.engine.cache_content import remove_damaged_outputs
from pipeline.engine.frozen_inputs import FrozenProject, find_untracked_code, freeze
from pipeline.sweep.conducting import conduct
from pipeline.sweep.engines import Crew
from pipeline.sweep.job import SWEEP, Job, tidy
from pipeline.sweep.planning import Planned, plan
from pipeline.sweep.points import Point
from stages.contracts.errors import ParamsError, StageError, StageFailedError
from stages.runs.layout import SWEEP_FOLDER


@dataclass
class Progress:
    """How the points ended so far, told as they do."""

    total: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def report(self, job: Job, error: Exception | None) -> None:
        """A point ended."""
        if error is None:
            self.succeeded(job.name, "done")
        else:
            said = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self.has_failed(job.name, said)

    def succeeded(self, name: str, how: str) -> None:
        """Its experiment is there."""
        self.done.append(name)
        self._tell(name, how)

    def has_failed(self, name: str, why: str) -> None:
        """It has none."""
        self.failed[name] = why
        self._tell(name, "failed")

    def _tell(self, name: str, how: str) -> None:
        typer.echo(f"[{len(self.done) + len(self.failed)}/{self.total}] {name}: {how}")


Run = Callable[[Sequence[Job], Crew, Callable[[Job, Exception | None], None]], None]
"""Has a crew do jobs, and tells of each how it ended."""


def sweep(points: Sequence[Point], crew: Crew, run: Run, *, share_gpus: bool) -> None:
    """*run* what is not done of *points*, each as an experiment, and print the table of all.

    Raises `StageFailedError` where a point failed, after the others, and `ParamsError` before anything runs.
    """
    crew.check()
    base = freeze(Path.cwd())
    remove_damaged_outputs(base.root)
    planned = plan(base, points)
    progress = Progress(len(planned))
    _warn(base)
    typer.echo(f"{_count(planned, 'point')}, {crew.width} at a time on {crew.engine}")
    for each in planned:
        if each.is_done:
            progress.succeeded(each.name, "done before")
        elif each.mistake:
            progress.has_failed(each.name, each.mistake)
    if jobs := _jobs(base, planned, share_gpus=share_gpus):
        with _told_where_it_stopped(progress):
            run(jobs, crew, progress.report)
    _conclude([each.name for each in planned], progress)


def run_alone(jobs: Sequence[Job], crew: Crew, report: Callable[[Job, Exception | None], None]) -> None:
    """Have *crew* do *jobs*, with nothing recorded."""
    with crew.opened() as submit:
        conduct(jobs, crew.width, submit, report)


def show(points: Sequence[Point]) -> None:
    """Print what a sweep of *points* would run, and run nothing.

    Raises `ParamsError` with each point whose params are not valid, after all are printed.
    """
    planned = plan(freeze(Path.cwd()), points)
    for each in planned:
        state = "done" if each.is_done else "not valid" if each.mistake else "to run"
        typer.echo(f"{each.name}: {state}")
    if mistakes := [f"{each.name}: {each.mistake}" for each in planned if each.mistake]:
        count = f"{len(mistakes)} of {_count(planned, 'point')} cannot run:"
        raise ParamsError("\n".join([count, *mistakes]))


def _jobs(base: FrozenProject, planned: Sequence[Planned], *, share_gpus: bool) -> list[Job]:
    folder = base.root / SWEEP_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder)
    sweep_lock = folder / f"{secrets.token_hex(4)}{SWEEP}"
    return [
        Job(
            base,
            each.name,
            tuple(each.point.arguments),
            each.params,
            sweep_lock,
            gpu=each.wants_gpu and not share_gpus,
            run=each.run,
        )
        for each in planned
        if not each.is_done and not each.mistake
    ]


@contextmanager
def _told_where_it_stopped(progress: Progress) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not isinstance(error, StageError):  # a signal, as a rule
            typer.echo(f"{len(progress.done)} of {progress.total} points are done; the same command goes on")
        raise


def _conclude(names: Sequence[str], progress: Progress) -> None:
    if progress.done:
        typer.echo()
        typer.echo(text_table(gather([name for name in names if name in progress.done])), nl=False)
    if progress.failed:
        reasons = [f"{name}: {why}" for name, why in progress.failed.items()]
        raise StageFailedError(
            "\n".join([f"{len(progress.failed)} of {progress.total} points failed", *reasons])
        )


def _warn(base: FrozenProject) -> None:
    if files := find_untracked_code(base.root):
        typer.echo(
            f"git does not know {', '.join(files)}: no point will have it; git add is enough", err=True
        )


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) != 1 else ''}"
