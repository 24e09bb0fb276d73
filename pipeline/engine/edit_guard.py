"""Guard against edits of a stage's dependencies while the stage runs.

DVC reads params and dependencies again when a stage has finished, and would record the edited ones with the
outputs of the previous ones.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.project.snapshot import ABSENT, Snapshot, take_snapshot
from stages.contracts.errors import StageError
from stages.system.files import sha256

MAX_LISTED_FILES = 5


class LoadedSources(MetaPathFinder):
    """An import hook that records the content of each module of the current folder, and finds none itself.

    Contents are compared, and not times: a file may have a time in the future, and a clock may be set.
    """

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._is_own: dict[tuple[str, str], bool] = {}
        folder = f"{Path.cwd()}{os.sep}"
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if name and name.startswith(folder) and "site-packages" not in name:
                self._record(name)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  the protocol's
        target: ModuleType | None = None,  # noqa: ARG002  the protocol's
        /,
    ) -> None:
        """Record the module *fullname*, which is about to be loaded, and leave it to the other finders."""
        with suppress(OSError):
            folder, top = os.getcwd(), fullname.partition(".")[0]  # noqa: PTH109  as fast as it gets
            if (folder, top) not in self._is_own:
                place = Path(folder, top)
                self._is_own[folder, top] = place.is_dir() or place.with_name(f"{top}.py").is_file()
            if self._is_own[folder, top]:
                name = f"{folder}{os.sep}{fullname.replace('.', os.sep)}"
                if not self._record(f"{name}.py"):
                    self._record(f"{name}{os.sep}__init__.py")

    def is_stale(self, path: Path, digest: str | None) -> bool:
        """Return whether this process has loaded *path* with other content; *digest* is the current one."""
        noted = self._digests.get(str(path.absolute()))
        return noted is not None and noted != (digest or sha256(path))

    def _record(self, name: str) -> bool:
        """Record the content of the file *name*, and return whether the file exists."""
        with suppress(OSError), open(name, "rb", buffering=0) as file:  # noqa: PTH123  as fast as it gets
            self._digests[name] = hashlib.sha256(file.read()).hexdigest()
            return True
        return False


@functools.cache
def record_loaded_sources() -> LoadedSources:
    """Record the content of each module of the current folder when this process loads it, from now on.

    Call this as early as possible: of a module that is loaded before, the content at the time of the call is
    recorded. A second call has no effect.
    """
    sources = LoadedSources()
    sys.meta_path.insert(0, sources)
    return sources


def check_unchanged(before: Snapshot) -> None:
    """Raise `StageError` with a list of the differences if the dependencies in *before* have changed."""
    changes = list(_changes(before, take_snapshot(before.stage)))
    if changes:
        lines = [
            f"a dependency of {before.stage} was changed while it ran, so its outputs are not recorded:",
            *changes,
            "Run the same command again to use the new content",
        ]
        raise StageError("\n  ".join(lines))


def check_loaded(before: Snapshot, version: str) -> None:
    """Raise `StageError` if this process has loaded older code than *before* found in the files.

    *version* is the VERSION of the stage's module as it was loaded. This can only happen in a process that
    runs several stages.
    """
    key = f"stages/{before.stage.replace('-', '_')}.py: VERSION"
    loaded = record_loaded_sources()
    stale = [
        *([key] if before.params.get(key, version) != version else []),
        *(str(path) for path, state in before.files.items() if loaded.is_stale(path, state.digest)),
    ]
    if stale:
        raise StageError(
            f"{', '.join(stale)} was changed after this process had loaded it, so {before.stage} would run "
            "the previous code. Run the same command again"
        )


def _changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for key, value in before.params.items():
        yield from _differences(key, value, after.params.get(key, ABSENT))
    changed = [str(path) for path in sorted({*before.files, *after.files}) if _differs(path, before, after)]
    if changed:
        more = f" and {len(changed) - MAX_LISTED_FILES} more" if len(changed) > MAX_LISTED_FILES else ""
        yield f"{', '.join(changed[:MAX_LISTED_FILES])}{more}"


def _differs(path: Path, before: Snapshot, after: Snapshot) -> bool:
    old, new = before.files.get(path), after.files.get(path)
    if old is None or new is None:
        return True
    return old != new and (old.digest is None or old.digest != new.digest)


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            joint = " " if name.endswith(":") else "."
            yield from _differences(f"{name}{joint}{key}", old.get(key, ABSENT), new.get(key, ABSENT))
    elif old != new:
        yield f"{name} was {old!r} and is {new!r}"
