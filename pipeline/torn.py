"""What DVC writes in place, so that a kill can tear it: dvc.lock, and its note of readers and writers.

DVC refuses to work with a torn one. Before each stage we keep the dvc.lock that is whole; a torn one gives
way to it, and DVC finds in its run-cache, or `fit` in its run store, what was done since.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.contracts.files import written_whole

LOCK = Path("dvc.lock")
KEPT = Path(".runs/dvc.lock")
TEMPORARY = Path(".dvc/tmp")
NOTE = TEMPORARY / "rwlock"


def keep_lock() -> None:
    """Keep dvc.lock as it is now, if it is whole."""
    if not is_whole_lock(LOCK):
        return
    if not LOCK.exists():
        KEPT.unlink(missing_ok=True)
        return
    content = LOCK.read_bytes()
    if not KEPT.exists() or KEPT.read_bytes() != content:
        with written_whole(KEPT) as file:
            file.write(content)


def mend() -> None:
    """Put right what a kill has torn in the project in this folder.

    Nothing is touched that another process may be writing at this moment.
    """
    with suppress(OSError), none_writes(TEMPORARY / "lock") as free:
        if free and not is_whole_lock(LOCK):
            _put_back()
    with suppress(OSError), none_writes(TEMPORARY / "rwlock.lock") as free:
        if free and not is_whole_note(NOTE):
            NOTE.unlink()


def is_whole_lock(path: Path) -> bool:
    """Whether DVC can read the dvc.lock *path*, or begins one because there is none."""
    try:
        return "schema" in (YAML(typ="safe").load(path.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return True
    except (YAMLError, UnicodeDecodeError, TypeError):
        return False


def is_whole_note(path: Path) -> bool:
    """The same of the note of readers and writers."""
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True


@contextmanager
def none_writes(lock: Path) -> Iterator[bool]:
    """Whether DVC's own *lock* was free; inside it is held then, so that no DVC writes what it guards."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _put_back() -> None:
    if not (KEPT.exists() and is_whole_lock(KEPT)):
        LOCK.unlink()
        return
    with written_whole(LOCK) as file:
        file.write(KEPT.read_bytes())
