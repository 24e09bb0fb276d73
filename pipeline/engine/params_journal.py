"""Journal that restores params.yaml if a run is killed that had set overrides in it.

Only the holder of the project lock edits params.yaml for a run, so a journal is stale if that lock is free.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from pipeline.engine.lock import project_lock
from stages.contracts.errors import StageError
from stages.runs.layout import PARAMS_BACKUP, PARAMS_JOURNAL, PROJECT_LOCK
from stages.system.file_lock import is_locked
from stages.system.files import open_atomic, read_regular, replace_content, sync_directory, write_text

PARAMS = Path("params.yaml")

MAX_JOURNAL_BYTES = 1 << 27
"""Largest journal that is read."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class _Entry:
    """The content of a journal."""

    original: str
    """The bytes of params.yaml before the run, in base64."""
    edited: str
    """The SHA-256 digest of params.yaml with the overrides."""

    @classmethod
    def read(cls) -> "_Entry | None":
        try:
            entry = cls(**json.loads(read_regular(PARAMS_JOURNAL, MAX_JOURNAL_BYTES)))
            base64.b64decode(entry.original, validate=True)
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return entry

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.original)

    def is_open(self) -> bool:
        """Return whether params.yaml has the overrides."""
        return _current() == self.edited != _digest(self.content)


@contextmanager
def edit_params(overrides: Sequence[str]) -> Iterator[None]:
    """Set *overrides* in params.yaml, if any, and restore its previous content if the block raises.

    A later command restores it if this process is killed in the block. If another process edits the file
    in the block, that edit stays. Hold the project lock around the block.
    """
    if not overrides:
        yield
        return
    text = import_module("pipeline.project.params_edit").override_params(overrides)  # imports DVC
    entry = _Entry(base64.b64encode(PARAMS.read_bytes()).decode(), _digest(text.encode()))
    write_text(PARAMS_JOURNAL, json.dumps(asdict(entry)))
    try:
        replace_content(PARAMS, text.encode())
        yield
    except BaseException:
        if _current() == entry.edited:
            replace_content(PARAMS, entry.content)
        raise
    finally:
        _discard()


def restore_params(report: Report | None) -> bool:
    """Restore params.yaml if a run was killed that had set overrides in it, and return whether it did.

    If the file was edited since, it stays, and the previous content is kept next to the run stores; without
    *report*, which receives a message of one line, that is left to the next command. Hold the project lock.
    """
    entry = _Entry.read()
    if entry is None:
        return False
    is_overridden = entry.is_open()
    if is_overridden:
        message = f"restored {PARAMS}: a run that was killed had set overrides in it"
        replace_content(PARAMS, entry.content)
    elif _current() in (entry.edited, _digest(entry.content)):
        message = ""
    elif report is None:
        return False
    else:
        message = (
            f"warning: {PARAMS} was edited after a killed run had set overrides in it, so it was not "
            f"restored. Compare it with {PARAMS_BACKUP}, its content before that run"
        )
        with open_atomic(PARAMS_BACKUP) as file:
            file.write(entry.content)
    if report and message:
        report(message)
    _discard()
    return is_overridden


def describe_open_journal() -> str | None:
    """Return a warning of one line if params.yaml has the overrides of a killed run; None otherwise.

    Nothing is changed. While a run is in progress, the overrides may be its own.
    """
    entry = _Entry.read()
    if entry is None or not entry.is_open() or is_locked(PROJECT_LOCK):
        return None
    return (
        f"{PARAMS} has the overrides of a run that was killed. The next `learner run`, or "
        "`learner doctor --fix`, restores it"
    )


def restore_idle_params(report: Report | None = None) -> None:
    """Do what `restore_params` does, unless a run in this project is in progress."""
    if not PARAMS_JOURNAL.exists():
        return
    try:
        with project_lock():
            restore_params(report)
    except StageError:  # the lock is held: the run that set the overrides may be the one in progress
        return


def _current() -> str | None:
    return _digest(PARAMS.read_bytes()) if PARAMS.exists() else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _discard() -> None:
    PARAMS_JOURNAL.unlink(missing_ok=True)
    sync_directory(PARAMS_JOURNAL.parent)
