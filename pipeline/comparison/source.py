"""One revision's files, read from git and DVC's cache: nothing is checked out, and nothing is fetched."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pipeline.comparison.cached_files import CachedFiles
from pipeline.engine.cache_content import DIRECTORY_SUFFIX
from pipeline.lockfile import parse_lockfile
from pipeline.project import paths_in
from pipeline.yaml_files import parse_yaml
from stages.contracts.errors import ParamsError

TRACKED = ("dvc.lock", "dvc.yaml", "params.yaml")
"""Files in git that a comparison reads, relative to the project."""


class Source:
    """The files of a commit, an experiment or the workspace."""

    def __init__(
        self,
        tracked: Mapping[str, bytes],
        cache: CachedFiles,
        *,
        sha: str | None = None,
        committed: datetime | None = None,
    ) -> None:
        """Take those of `TRACKED` that exist; *sha* in full and the time are None for the workspace."""
        self.sha = sha
        self.committed = committed
        self.damaged: set[Path] = set()
        """Cached files whose content was read and does not have their hash."""
        self._tracked = tracked
        self._cache = cache

    @cached_property
    def lock(self) -> Mapping[str, Any]:
        """Stage to what DVC recorded of it; empty where nothing was run."""
        text = self._text("dvc.lock")
        return {} if text is None else parse_lockfile(text, "dvc.lock").get("stages") or {}

    @cached_property
    def paths(self) -> Mapping[str, Path]:
        """``vars.paths`` of its own dvc.yaml; empty if it has none or is not valid YAML."""
        text = self._text("dvc.yaml")
        return {} if text is None else _paths(text)

    def tracked(self, name: str) -> Mapping[str, Any]:
        """The YAML file *name*, one of `TRACKED`; empty if it is missing."""
        text = self._text(name)
        content = {} if text is None else _parsed(text, name)
        return content if isinstance(content, dict) else {}

    def read(self, path: Path) -> str | None:
        """The text of an output, or of a file in one; None where it is not recorded or not in the cache."""
        md5 = self.hashes.get(path.as_posix())
        content = None if md5 is None else self._cache.read(md5)
        self._note_damage(md5)
        return None if content is None else content.decode("utf-8", errors="replace")

    def below(self, directory: Path) -> list[Path]:
        """Every recorded file below *directory*, sorted; of an output that is not cached, none."""
        prefix = f"{directory.as_posix()}/"
        return sorted(Path(name) for name in self.hashes if name.startswith(prefix))

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Path to hash, of every file of every output, as far as the lists of directories are cached."""
        return dict(pair for path, md5 in self._outputs() for pair in self._expanded(path, md5))

    @property
    def cached(self) -> bool:
        """Whether the cache has every recorded output, and the files up to `VERIFIED_BYTES` are intact.

        False if nothing is recorded.
        """
        listed = [md5 for _, md5 in self._outputs() if md5.endswith(DIRECTORY_SUFFIX)]
        there = [self._is_intact(md5) for md5 in (*listed, *self.hashes.values())]
        return bool(self.lock) and all(there)

    def _outputs(self) -> Iterator[tuple[str, str]]:
        for stage in self.lock.values():
            yield from ((out["path"], out["md5"]) for out in stage.get("outs", []) if "md5" in out)

    def _expanded(self, path: str, md5: str) -> Iterator[tuple[str, str]]:
        if not md5.endswith(DIRECTORY_SUFFIX):
            yield path, md5
            return
        yield from ((f"{path}/{name}", each) for name, each in self._cache.files_of(md5).items())
        self._note_damage(md5)

    def _is_intact(self, md5: str) -> bool:
        intact = self._cache.is_intact(md5)
        self._note_damage(md5)
        return intact

    def _note_damage(self, md5: str | None) -> None:
        if md5 is not None and self._cache.is_damaged(md5):
            self.damaged.add(self._cache.place(md5))

    def _text(self, name: str) -> str | None:
        """Return the text of the tracked file *name*; None if it is missing."""
        try:
            return self._tracked[name].decode("utf-8") if name in self._tracked else None
        except UnicodeDecodeError as error:
            raise ParamsError(f"{name} is not valid YAML: {error}") from error


@lru_cache(maxsize=16)
def _parsed(text: str, name: str) -> Any:
    """Return the content of the YAML file *name*, which runs often have in common."""
    return parse_yaml(text, name)


@lru_cache(maxsize=16)
def _paths(text: str) -> dict[str, Path]:
    with suppress(ParamsError):
        content = parse_yaml(text, "dvc.yaml")
        return paths_in(content, "dvc.yaml") if isinstance(content, dict) else {}
    return {}
