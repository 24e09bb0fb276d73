"""A run store: the directory in which one run works until it is done, by however many processes in turn.

<root>/3f2a…/           what the run made so far: checkpoints, logs
<root>/3f2a…/key.json   what the key was made of
<root>/3f2a…/finished.json, heartbeat.json
<root>/3f2a….lock       who works in it
<root>/.trash-…         what is being removed; whoever removes next clears it away
"""

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stages.contracts.errors import StageError
from stages.contracts.files import sync_directory, write_text
from stages.runs.key import KEY, differences, plain, run_key
from stages.runs.lock import held

KEY_FILE = "key.json"
FINISHED_FILE = "finished.json"
HEARTBEAT_FILE = "heartbeat.json"
TRASH = ".trash-"
_OWN = {KEY_FILE, HEARTBEAT_FILE, f".{KEY_FILE}.part", f".{HEARTBEAT_FILE}.part"}
"""What stands in a store in which nothing has been done yet."""


class RunStore:
    """A store that this process has to itself; made by `open_store`."""

    def __init__(self, path: Path, entries: dict[str, Any]) -> None:
        self.path = path
        """The directory to work in."""
        self.entries = entries
        self.fresh = not any(each.name not in _OWN for each in path.iterdir())
        """Whether nothing was there when it was opened, or since `restart`."""

    @property
    def key(self) -> str:
        """The name of the directory."""
        return self.path.name

    @property
    def finished(self) -> dict[str, Any] | None:
        """What `finish` was told; None while the run is not done."""
        return read_json(self.path / FINISHED_FILE)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """The run is done, and *facts* (plain values) say how far it went."""
        with _told(self.path):
            write_text(self.path / FINISHED_FILE, _text(facts))

    def reopen(self) -> None:
        """A finished run goes on, for example for more epochs: it is not done any more."""
        (self.path / FINISHED_FILE).unlink(missing_ok=True)
        sync_directory(self.path)

    def restart(self) -> None:
        """Remove all that the run made: it begins anew.

        Killed at any moment, it leaves the store as it was, or empty.
        """
        with _told(self.path):
            shutil.rmtree(set_aside(self.path), ignore_errors=True)
            _make(self.path, self.entries)
        self.fresh = True

    def nearest(self) -> tuple[str, list[str]] | None:
        """The key of the store that differs in the fewest entries, and in which; None where there is none.

        A line of it reads from that store's value to this one's.
        """
        found = []
        for path in stores(self.path.parent):
            entries = read_json(path / KEY_FILE)
            if path.name != self.key and entries is not None:
                found.append((path.name, differences(entries, self.entries)))
        return min(found, key=lambda each: (len(each[1]), each[0]), default=None)


@contextmanager
def open_store(root: Path, entries: Mapping[str, Any]) -> Iterator[RunStore]:
    """The store of the run that *entries* make up, below *root*; nobody else has it until the block ends.

    Raises `RunInUseError` where somebody has it now, `StageError` where it cannot be made or is not what its
    name says.
    """
    path = root.resolve() / run_key(entries)
    with ExitStack() as stack:
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(lock_of(path)))
            _make(path, plain(entries))
            store = RunStore(path, plain(entries))
        yield store


def stores(root: Path) -> list[Path]:
    """Every store below *root*, sorted by key."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if KEY.fullmatch(path.name) and path.is_dir())


def lock_of(path: Path) -> Path:
    """The lock file of the store *path*. It stands beside it, so that the store can be moved away as one."""
    return path.with_name(f"{path.name}.lock")


def set_aside(path: Path) -> Path:
    """Take the store *path* away in one step; where what is left of it waits to be removed."""
    trash = path.with_name(f"{TRASH}{path.name}-{secrets.token_hex(4)}")
    path.rename(trash)
    sync_directory(path.parent)
    return trash


def read_json(path: Path) -> dict[str, Any] | None:
    """The map in *path*; None where there is no such file, or something else in it."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _make(path: Path, entries: dict[str, Any]) -> None:
    path.mkdir(exist_ok=True)
    there = read_json(path / KEY_FILE)
    if there == entries:
        return
    if there is not None and run_key(there) != path.name:
        raise StageError(
            f"{path / KEY_FILE} says that this is the store of run {run_key(there)}, not of {path.name}: "
            f"it was moved or edited. Rename it, or remove {path}"
        )
    write_text(path / KEY_FILE, _text(entries))
    sync_directory(path.parent)


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A full disk or a missing permission, told as what it is about."""
    try:
        yield
    except OSError as error:
        raise StageError(
            f"the run store {path} cannot be used: {error.strerror}. "
            "See that there is space and that it may be written to"
        ) from error
