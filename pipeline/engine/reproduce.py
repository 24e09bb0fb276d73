"""One stage through DVC's own engine, in this process.

Whether it must run, what is removed before, the run-cache, the saving and dvc.lock are all DVC's; only how
the body is called is ours: instead of starting ``cmd``, DVC calls a function here. For that one private name
of DVC is replaced (`dvc.stage.run.cmd_run`), which is why dvc is pinned exactly.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

import dvc.stage.run
from dvc.env import DVC_ROOT, DVC_STAGE
from dvc.exceptions import DvcException
from dvc.repo import Repo
from voluptuous import Invalid

from pipeline.engine.cache_content import remove_damaged_output, verify_restores
from pipeline.engine.lockfile_repair import LOCKFILE, back_up_lockfile, repair_lockfiles
from pipeline.engine.signals import defer_signals
from pipeline.engine.stage_run import run_stage
from pipeline.lockfile import check_lockfile
from stages.contracts.errors import StageError, StageFailedError
from stages.contracts.events import Renderer

log = logging.getLogger(__name__)
Run = Callable[[str, Renderer | None], None]

_body: ContextVar[Callable[[], None] | None] = ContextVar("body", default=None)
_start_command = dvc.stage.run.cmd_run


class Outcome(StrEnum):
    """What DVC did with a stage."""

    RAN = "ran"
    UNCHANGED = "unchanged"
    RESTORED = "restored from the run-cache"


def _call_body(stage: Any, dry: bool = False, run_env: Any = None) -> None:  # noqa: FBT001, FBT002  DVC's own signature
    body = _body.get()
    if body is None or dry:
        _start_command(stage, dry=dry, run_env=run_env)
        return
    with _environment({DVC_ROOT: stage.repo.root_dir, DVC_STAGE: stage.addressing}):
        body()


dvc.stage.run.cmd_run = _call_body


def reproduce(name: str, renderer: Renderer | None = None, *, run: Run = run_stage) -> Outcome:
    """Reproduce stage *name* of the project in this folder, and nothing before or after it.

    Where the stage must run, *run* is called to do it, with *renderer*, which shows the stage that trains.
    A signal ends that call; one that comes while DVC is at work waits until its locks are released and its
    files are whole.

    Raises what the stage's body raises, after its outputs are back as they were; `StageFailedError` where it
    is DVC that cannot go on.
    """
    called = []
    with defer_signals() as signals:

        def body() -> None:
            called.append(name)
            with signals.delivery():
                run(name, renderer)

        reproduced = _reproduce(name, body, called)
    if not reproduced:
        return Outcome.UNCHANGED
    return Outcome.RAN if called else Outcome.RESTORED


def _reproduce(name: str, body: Callable[[], None], called: Sequence[str]) -> list[Any]:
    token = _body.set(body)
    verify_restores()
    try:
        repair_lockfiles()
        check_lockfile(LOCKFILE)
        back_up_lockfile()
        with _quiet_dvc(), Repo() as repo:
            return list(repo.reproduce(name, single_item=True))
    except BaseException as error:
        if called:
            restore_outputs(name)
        if isinstance(error, DvcException):
            cause = _cause(error)
            raise cause from (cause.__cause__ or error)
        raise
    finally:
        _body.reset(token)


def restore_outputs(name: str) -> None:
    """Restore the outputs that the last finished run of stage *name* made, if they are intact in the cache.

    DVC removes a stage's outputs before it runs; a run that fails must not cost the user the previous ones.
    Outputs that cannot be restored are logged as a warning, since an error has ended the stage already.
    """
    missing: list[str] = []
    try:
        with defer_signals(), Repo() as repo:
            outputs = repo.stage.load_one(name=name).outs
            missing = [str(output) for output in outputs if output.hash_info]
            for output in outputs:
                remove_damaged_output(output)
                if output.hash_info and not output.changed_cache():
                    output.checkout(force=True)
                    missing.remove(str(output))
    except Exception as error:  # noqa: BLE001  whatever DVC raises must not hide the first error
        log.warning(
            "the previous %s could not be restored (%s). When the cause is fixed, run: dvc checkout %s",
            ", ".join(missing) or f"outputs of {name}",
            _reason(error),
            " ".join(missing) or name,
        )


def _reason(error: BaseException) -> str:
    """Return the system's words for what made DVC fail, or else those of DVC."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _cause(error: BaseException) -> BaseException:
    """Return the project's or the user's own error behind DVC's, or DVC's message."""
    messages, cause = [], error
    while cause is not None:
        if isinstance(cause, StageError):
            return cause
        if not isinstance(cause, DvcException):
            return cause
        messages.append(str(cause))
        if cause.__cause__ is None or isinstance(
            cause.__cause__, Invalid
        ):  # DVC cannot read a file of its own
            break
        cause = cause.__cause__
    return StageFailedError(": ".join(messages))


@contextmanager
def _quiet_dvc() -> Iterator[None]:
    """DVC warns, but does not tell what the caller tells."""
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
