"""Files of a project's state, which only runs of its user may write: others may have delivered them with git.

``.runs`` and ``.dvc/tmp`` have locks, journals and run stores. A repository that tracks one of them could
replace params.yaml, publish results of its own, or have a file of the user written through a link.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.project.git import list_tracked_files, may_track
from pipeline.project.paths import find_above, runs_root
from stages.contracts.errors import StageError
from stages.runs.layout import RUNS_FOLDER

DVC_FOLDER = Path(".dvc")
MAX_LISTED_FILES = 3


def check_delivered_files() -> None:
    """Raise `StageError` if git tracks files of the state of this project, or another user has written them.

    Also raise it if git tracks a link in the folder of DVC, or a link to a device, which may have no end.
    """
    runs, dvc = runs_root().absolute(), find_above(DVC_FOLDER).absolute()
    if os.path.lexists(runs):
        _check_owner(runs)
    refused = []
    for root in {each.parent for each in (runs, dvc) if os.path.lexists(each)}:
        if may_track(root, (RUNS_FOLDER, ".dvc/tmp")):
            tracked = list_tracked_files(root).items()
            refused += [str(path) for path, is_link in tracked if _is_refused(root, path, is_link=is_link)]
    if refused:
        listed = ", ".join(refused[:MAX_LISTED_FILES])
        more = f" and {len(refused) - MAX_LISTED_FILES} more" if len(refused) > MAX_LISTED_FILES else ""
        raise StageError(
            f"git tracks {listed}{more}: files that only runs on this machine may write, or links in their "
            "place or to devices. Find out who has added them, run `git rm -r --cached` for them, and remove "
            "them"
        )


def _is_refused(root: Path, path: Path, *, is_link: bool) -> bool:
    first, *below = path.parts
    if first == RUNS_FOLDER or (first == DVC_FOLDER.name and (is_link or below[:1] == ["tmp"])):
        return True
    place = root / path
    return is_link and place.exists() and not (place.is_file() or place.is_dir())


def _check_owner(runs: Path) -> None:
    """Raise `StageError` if a file of *runs* belongs neither to this user, the project's, nor its group."""
    project = runs.parent.stat()
    owners = {os.geteuid(), project.st_uid}
    shared = project.st_gid if project.st_mode & stat.S_ISGID else None
    for path, about in _list_state(runs):
        if about.st_uid not in owners and about.st_gid != shared:
            raise StageError(
                f"{path} belongs to user {about.st_uid}, neither to you nor to the owner of this folder. Run "
                "in your own clone, or remove it"
            )


def _list_state(runs: Path) -> Iterator[tuple[Path, os.stat_result]]:
    yield runs, runs.lstat()
    if runs.is_dir():
        with os.scandir(runs) as entries:
            yield from ((Path(each.path), each.stat(follow_symlinks=False)) for each in entries)
