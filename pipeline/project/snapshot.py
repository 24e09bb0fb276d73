"""The dependencies of a stage of dvc.yaml at one moment, and the guard against edits while the stage runs.

DVC reads params and dependencies again when a stage has finished, and would record the edited ones with the
outputs of the previous ones. They are read here without DVC, which takes longer to import than most stages to
run.

dvc.lock has one hash for a folder. The list of its files, from which DVC computes that hash, is in
``.runs/folders``, where each run of a stage stores it if the folder has code. Its name is that hash, so a
list is never used for another content.
"""

import ast
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from pipeline.project.paths import runs_root
from pipeline.project.reads import record_reads
from pipeline.project.yaml_files import MAX_YAML_BYTES, read_definition, read_mapping, read_yaml, stages_of
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.text import join_names
from stages.runs.layout import FOLDERS
from stages.system.files import md5, parse_file_list, raise_unless_missing, read_regular, sha256, write_text

ABSENT = "missing"
"""The value of a key that does not exist."""
MAX_HASHED_BYTES = 16 << 20
"""Files are compared by content until a snapshot has read this much, and then by size, time and inode."""
ALWAYS_IGNORED = (".git", ".hg", ".dvc", "__pycache__")
"""Names of folders that are ignored without a rule."""
MAX_WILDCARDS = 3
"""Most ``*`` between two slashes of a pattern, and most ``**``; with each, a name takes ten times as long."""
_WILDCARD = re.compile(r"\*+")
MAX_LISTED_FILES = 5
"""Files that the error about an edit names."""
DIRECTORY_SUFFIX = ".dir"
"""Ending of the hash of a folder in dvc.lock."""


@dataclass(frozen=True)
class FileState:
    """The state of a file, which an edit changes."""

    size: int
    modified: int
    inode: int
    digest: str | None


@dataclass(frozen=True)
class Snapshot:
    """The dependencies of one stage at one moment; empty if dvc.yaml does not have that stage."""

    stage: str
    params: Mapping[str, Any]
    """By file and key, as in "params.yaml: fit"."""
    files: Mapping[Path, FileState]
    """Every file of ``deps``, by its path."""
    deps: Sequence[str] = ()


def take_snapshot(stage: str) -> Snapshot:
    """Return the dependencies of *stage* now, according to dvc.yaml: params, modules and files."""
    entry = resolve_stages(read_definition()).get(stage) or {}
    deps = list_paths(entry, "deps")
    return Snapshot(stage, dict(_params(entry)), _files(deps), tuple(deps))


def resolve_stages(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stages of a dvc.yaml with the content *definition*, with the values for ``${…}``."""
    return dict(interpolate(stages_of(definition), read_variables(definition)))


def read_variables(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that ``${…}`` can name in a dvc.yaml with *content*: params.yaml and ``vars``.

    Raises `ParamsError` if a part of ``vars`` is neither a mapping nor the name of a file with one.
    """
    values: dict[str, Any] = {}
    with suppress(ParamsError):
        values |= read_mapping(Path("params.yaml"))
    for part in content.get("vars") or []:
        if not isinstance(part, str | dict):
            raise ParamsError(
                f"dvc.yaml: vars has {str(part)[:60]!r}. Write the name of a file, or a mapping"
            )
        values |= read_mapping(Path(part.partition(":")[0])) if isinstance(part, str) else part
    return values


def interpolate(value: Any, values: Mapping[str, Any]) -> Any:
    """Return *value* with each ``${a.b}`` replaced by that entry of *values*.

    Raises `ParamsError` if the entries have more characters than a YAML file may have bytes.
    """
    remaining = MAX_YAML_BYTES

    def replace(text: str) -> Iterator[str]:
        nonlocal remaining
        *parts, end = text.split("}")  # a regular expression would search each ${ to the end
        for part in parts:
            before, _, key = part.partition("${")
            if not key:
                yield f"{part}}}"
                continue
            entry = str(look_up(values, key.strip().replace("[", ".").replace("]", "")))
            remaining -= len(entry)
            if remaining < 0:
                raise ParamsError(
                    f"dvc.yaml: its ${{…}} stand for more than {MAX_YAML_BYTES:,} characters, with "
                    f"{len(entry):,} for {key[:60]!r}. Write a shorter value, or fewer ${{…}}"
                )
            yield before + entry
        yield end

    def visit(item: Any) -> Any:
        if isinstance(item, str):
            return "".join(replace(item))
        if isinstance(item, Mapping):
            return {visit(key): visit(entry) for key, entry in item.items()}
        if isinstance(item, list):
            return [visit(entry) for entry in item]
        return item

    return visit(value)


def look_up(values: Any, key: str) -> Any:
    """Return the value in *values* under the dotted *key*; `ABSENT` if it has no value.

    A number selects an element of a list.
    """
    for name in key.split("."):
        if isinstance(values, list):
            values = {str(index): value for index, value in enumerate(values)}
        if not isinstance(values, Mapping) or name not in values:
            return ABSENT
        values = values[name]
    return values


def list_tracked_params(stage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield file and key of each param that *stage*, an entry of dvc.yaml, tracks; an empty key for all."""
    for entry in stage.get("params") or []:
        for name, keys in (entry if isinstance(entry, Mapping) else {"params.yaml": [entry]}).items():
            yield from ((name, str(key)) for key in keys or [""])


def _params(stage: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each parameter: a key of params.yaml or of another file."""
    for name, key in list_tracked_params(stage):
        values = read_params_file(Path(name))
        yield (f"{name}: {key}", look_up(values, key)) if key else (f"{name}:", values)


def read_params_file(path: Path) -> Any:
    """Return the values in the params file *path*; empty if it cannot be read, which is a difference too."""
    with suppress(OSError, ParamsError, SyntaxError, ValueError):
        if path.suffix == ".py":
            return dict(_literals(ast.parse(path.read_bytes()).body))
        if path.suffix == ".toml":
            return tomllib.loads(path.read_text(encoding="utf-8"))
        return read_yaml(path)
    return {}


def _literals(body: list[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each literal that a module, or a class in it, assigns."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name, dict(_literals(node.body))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            with suppress(ValueError):
                value = ast.literal_eval(node.value)
                yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def list_paths(stage: Mapping[str, Any], kind: str) -> list[str]:
    """Return the paths of a *stage* that `resolve_stages` returns, its ``deps`` or its ``outs``."""
    entries = stage.get(kind) or []
    return [str(next(iter(entry)) if isinstance(entry, Mapping) else entry) for entry in entries]


def _files(deps: list[str]) -> dict[Path, FileState]:
    """Return the state of every file of *deps*; code is read first, as its content is in the key of a run."""
    ignored = read_ignore_rules()
    paths = [path for name in deps if "://" not in name for path in _walk(Path(name), ignored)]
    states = {}
    remaining = MAX_HASHED_BYTES
    for path in sorted(paths, key=lambda path: path.suffix != ".py"):
        with suppress(OSError):
            states[path] = state = _read_state(path, remaining)
            remaining -= state.size if state.digest else 0
    return states


def list_folder(folder: Path) -> str | None:
    """Return the list of the files in *folder*, as DVC writes it; None if they are too large to be read.

    The hash of *folder* in dvc.lock is the MD5 of this text.
    """
    paths = list(_walk(folder, read_ignore_rules()))
    if sum(path.stat().st_size for path in paths) > MAX_HASHED_BYTES:
        return None
    return write_list({path.relative_to(folder).as_posix(): md5(path) for path in paths})


def write_list(digests: Mapping[str, str | None]) -> str:
    """Return DVC's list of the files of a folder, from their relative names and MD5 hashes."""
    return json.dumps([{"md5": digest, "relpath": name} for name, digest in sorted(digests.items())])


def store_folder_lists(snapshot: Snapshot) -> None:
    """Store the list of each folder with code in *snapshot*, that of a stage which has run, if it is new."""
    code = [path for path in snapshot.files if path.suffix == ".py"]
    for folder in map(Path, snapshot.deps):
        if not any(path != folder and path.is_relative_to(folder) for path in code):
            continue
        if text := list_folder(folder):
            digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            path = runs_root() / FOLDERS / f"{digest}{DIRECTORY_SUFFIX}"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)


def read_folder_list(oid: str) -> dict[str, str] | None:
    """Return the MD5 of each file in the folder with the hash *oid*; None if they are unknown."""
    with suppress(OSError, StageError):
        path = runs_root() / FOLDERS / oid
        return parse_file_list(read_regular(path), path)
    return None


def read_ignore_rules() -> GitIgnoreSpec:
    """Return the rules of the .dvcignore of this project; DVC reads it as git reads a .gitignore.

    Raises `StageError` if it cannot be read, and as `parse_ignore_rules` does.
    """
    path = Path(".dvcignore")
    lines: list[str] = []
    try:
        lines = [line.strip() for line in read_regular(path).decode("utf-8").splitlines()]
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StageError(f"{path} cannot be read: {error.strerror}. Make it readable") from error
    except UnicodeDecodeError as error:
        raise StageError(f"{path} is not text in UTF-8: {error}. Write it in UTF-8") from error
    return parse_ignore_rules([*(line for line in lines if not line.startswith("#")), *ALWAYS_IGNORED], ".")


def parse_ignore_rules(rules: Sequence[str], folder: str) -> GitIgnoreSpec:
    """Return the *rules* of the .dvcignore in *folder*.

    Raises `StageError` if one of them is invalid or may take hours to match.
    """
    for rule in rules:
        parts = rule.rstrip("*/").split("/")
        if max(len(_WILDCARD.findall(part)) for part in parts) > MAX_WILDCARDS or (
            parts[1:].count("**") > MAX_WILDCARDS
        ):
            raise StageError(
                f".dvcignore in {folder} has the pattern {rule[:60]!r}, whose wildcards may take hours to "
                f"match. Write at most {MAX_WILDCARDS} between two slashes"
            )
    try:
        return GitIgnoreSpec.from_lines(rules)
    except (ValueError, re.error) as error:
        raise StageError(f".dvcignore in {folder}: {error}. Correct the pattern") from error


def _walk(path: Path, ignored: GitIgnoreSpec) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path, onerror=raise_unless_missing):
        parent = Path(folder)
        folders[:] = sorted(
            name for name in folders if not ignored.match_file(f"{(parent / name).as_posix()}/")
        )
        yield from (parent / name for name in sorted(files) if not ignored.match_file(parent / name))


def _read_state(path: Path, hashable: int) -> FileState:
    about = path.stat()
    digest = sha256(path) if about.st_size <= hashable else None
    return FileState(about.st_size, about.st_mtime_ns, about.st_ino, digest)


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
    loaded = record_reads()
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
        yield join_names(changed, MAX_LISTED_FILES)


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
