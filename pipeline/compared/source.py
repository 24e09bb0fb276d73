"""One revision's files, straight from git and DVC's cache: nothing is checked out, and nothing is fetched."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from dvc.repo import Repo

from pipeline.paths import paths_in
from pipeline.yaml_files import parse_yaml
from stages.contracts.errors import ParamsError

DIRECTORY = ".dir"
"""What ends the hash of a directory: that of a list of its files."""


class Source:
    """A commit or an experiment, by its full SHA; the workspace, where that is None."""

    def __init__(self, repo: Repo, sha: str | None) -> None:
        self.sha = sha
        self._cache = repo.cache.local
        self._files = repo.scm.get_fs(sha) if sha else None
        self._here = Path.cwd().resolve().relative_to(Path(repo.scm.root_dir).resolve())
        self.committed: datetime | None = repo.scm.resolve_commit(sha).commit_datetime if sha else None

    @cached_property
    def lock(self) -> Mapping[str, Any]:
        """Stage to what DVC recorded of it; empty where nothing was run."""
        return self.tracked("dvc.lock").get("stages") or {}

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
        """Whether the cache has every recorded output; not so where nothing is recorded."""
        listed = all(self._bytes(md5) is not None for _, md5 in self._outputs() if md5.endswith(DIRECTORY))
        return bool(self.lock) and listed and all(self._place(md5).exists() for md5 in self.hashes.values())

    def _outputs(self) -> Iterator[tuple[str, str]]:
        for stage in self.lock.values():
            yield from ((out["path"], out["md5"]) for out in stage.get("outs", []) if "md5" in out)

    def _expanded(self, path: str, md5: str) -> Iterator[tuple[str, str]]:
        if not md5.endswith(DIRECTORY):
            yield path, md5
            return
        content = self._bytes(md5)
        for each in json.loads(content) if content else []:
            yield f"{path}/{each['relpath']}", each["md5"]

    def _bytes(self, md5: str | None) -> bytes | None:
        if md5 is None or not self._place(md5).exists():
            return None
        return self._place(md5).read_bytes()

    def _place(self, md5: str) -> Path:
        return Path(self._cache.oid_to_path(md5))

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
