"""DVC's note of who reads and writes what: a kill in the middle of its writing leaves it broken.

DVC empties the file and writes it anew, a few times a stage. What it finds broken it does not touch.
"""

import json
from pathlib import Path

from dvc.lock import make_lock
from dvc.repo import Repo
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK


def mend_rwlock(repo: Repo) -> bool:
    """Remove DVC's note of readers and writers where it cannot be read, as it asks for; whether that was so.

    Nothing is lost by it: a note is cut only where its writer died.
    """
    folder = Path(repo.tmp_dir)
    hardlink = repo.config["core"].get("hardlink_lock", False)
    guard = make_lock(str(folder / RWLOCK_LOCK), tmp_dir=str(folder), hardlink_lock=hardlink)
    with guard:  # nobody is writing it now
        note = folder / RWLOCK_FILE
        if is_whole(note):
            return False
        note.unlink()
        return True


def is_whole(note: Path) -> bool:
    """Whether DVC can read *note*, or begins one of its own because there is none."""
    try:
        json.loads(note.read_text())
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True
