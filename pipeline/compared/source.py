"""One revision's files, read from git and DVC's cache: nothing is checked out, and nothing is fetched."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from dvc.repo import Repo

from pipeline.cache_content import DIRECTORY, files_of, is_damaged, place_of
from pipeline.lockfile import parse_lock
from pipeline.paths import paths_in
from pipeline.yaml_files import parse_yaml
from stages.contracts.errors import ParamsError

VERIFIED_BYTES = 1 << 20
"""Size up to which a cached file that is not shown is read too. `learner doctor --deep` reads all of them."""


class Source:
    """A commit or an experiment, by its full SHA; the workspace, where that is None."""

    def __init__(self, repo: Repo, sha: str | None) -> None:
        self.sha = sha
        self._cache = Path(repo.cache.local.path)
        self.damaged: set[Path] = set()
        """Cached files whose content was read and does not have their hash."""
        self._files = repo.scm.get_fs(sha) if sha else None
        self._here = Path.cwd().resolve().relative_to(Path(repo.scm.root_dir).resolve())
        self.committed: datetime | None = repo.scm.resolve_commit(sha).commit_datetime if sha else None

    @cached_property
    def lock(self) -> Mapping[str, Any]:
        """Stage to what DVC recorded of it; empty where nothing was run."""
        text = self._text("dvc.lock")
        return {} if text is None else parse_lock(text, "dvc.lock").get("stages") or {}

    @cached_property
    def paths(self) -> dict[str, Path]:
        """``vars.paths`` of its own dvc.yaml; empty where that has none, as that of another project."""
        with suppress(ParamsError):
            return paths_in(self.tracked("dvc.yaml"), "dvc.yaml")
        return {}

    def tracked(self, name: str) -> dict[str, Any]:
        """The YAML file *name* as git has it; empty where it has none."""
        text = self._text(name)
        content = {} if text is None else parse_yaml(text, name)
        return content if isinstance(content, dict) else {}

    def read(self, path: Path) -> str | None:
        """The text of an output, or of a file in one; None where it is not recorded or not in the cache."""
        content = self._bytes(self.hashes.get(path.as_posix()))
        return None if content is None else content.decode("utf-8", errors="replace")

    def below(self, directory: Path) -> list[Path]:
        """Every recorded file below *directory*, sorted; of an output that is not cached, none."""
        return sorted(Path(name) for name in self.hashes if Path(name).is_relative_to(directory))

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Path to hash, of every file of every output, as far as the lists of directories are cached."""
        return dict(pair for path, md5 in self._outputs() for pair in self._expanded(path, md5))

    @property
    def cached(self) -> bool:
        """Whether the cache has every recorded output, and those up to `VERIFIED_BYTES` are intact.

        False if nothing is recorded.
        """
        listed = [md5 for _, md5 in self._outputs() if md5.endswith(DIRECTORY)]
        there = [self._is_intact(md5) for md5 in (*listed, *self.hashes.values())]
        return bool(self.lock) and all(there)

    def _outputs(self) -> Iterator[tuple[str, str]]:
        for stage in self.lock.values():
            yield from ((out["path"], out["md5"]) for out in stage.get("outs", []) if "md5" in out)

    def _expanded(self, path: str, md5: str) -> Iterator[tuple[str, str]]:
        if not md5.endswith(DIRECTORY):
            yield path, md5
            return
        self._bytes(md5)
        yield from ((f"{path}/{name}", each) for name, each in files_of(self._cache, md5).items())

    def _bytes(self, md5: str | None) -> bytes | None:
        """Return the content of an object; None if it is missing, or damaged."""
        if md5 is None or not self._place(md5).exists():
            return None
        if is_damaged(self._place(md5), md5):
            self.damaged.add(self._place(md5))
            return None
        return self._place(md5).read_bytes()

    def _is_intact(self, md5: str) -> bool:
        place = self._place(md5)
        if not place.exists() or place in self.damaged:
            return False
        return place.stat().st_size > VERIFIED_BYTES or self._bytes(md5) is not None

    def _place(self, md5: str) -> Path:
        return place_of(self._cache, md5)

    def _text(self, name: str) -> str | None:
        if self._files is None:
            path = Path(name)
            return path.read_text(encoding="utf-8") if path.exists() else None
        place = (self._here / name).as_posix()
        if not self._files.exists(place):
            return None
        with self._files.open(place, "rb") as file:
            content: bytes = file.read()
        return content.decode("utf-8")
