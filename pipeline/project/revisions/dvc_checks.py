"""Checks, in DVC itself, of files that a stranger may have written, and of the content of its cache.

DVC writes through a name in a list that leads out of its folder when it checks out, removes a file that an
object names if its content has another hash, and does not return from a walk through such a list. Its remotes
run programs: that for S3 the one that a file of settings names, and that for WebDAV a command for tokens. It
expands all aliases in YAML and all matrices of stages, reads devices, and matches any pattern of .dvcignore.

DVC treats a cached file as intact if it is read-only, and otherwise if its size, inode and modification time
are those in its state database; its setting ``verify`` does not change that for a local cache. So it restores
a damaged file as an output. The functions here read the content. `pipeline.engine.dvc_patches` makes DVC
call them in this process; a damaged file is removed, so that DVC fetches it or runs the stage again.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc.fs import localfs
from dvc.output import Output
from dvc.repo import Repo
from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
from dvc.stage import cache as run_cache
from dvc.utils.serialize import YAMLFileCorruptedError
from dvc.utils.serialize import load_yaml as load_file
from ruamel.yaml.error import YAMLError
from voluptuous import Invalid

from pipeline.project.lockfile import LOCKFILE
from pipeline.project.yaml_files import MAX_YAML_BYTES, check_aliases, load_yaml
from stages.contracts.errors import StageError
from stages.contracts.printing import print_error
from stages.system.files import check_file_names, is_below, is_md5, md5, parse_file_list, read_regular
from stages.system.patches import Patch, apply_patches

SUPPORTED = "3.18.3"
_OBJECT = re.compile(r"[0-9A-Za-z_-]+(\.dir)?(\.unpacked)?")
"""Names of objects, whose beginnings are names too. That of an object of ours is a hash (see `is_md5`)."""
_PROGRAM_OPTIONS = {
    "configpath": "a file that can name a program",
    "credentialpath": "a file that can name a program",
    "bearer_token_command": "a program",
}
"""Options of a remote that lead to programs, which boto3 and the remote for WebDAV run."""
MAX_MATRIX_STAGES = 10_000
"""Most stages of all matrices of a dvc.yaml."""
MAX_WILDCARDS = 3
"""Most ``*`` between two slashes of a pattern, and most ``**``; with each, a name takes ten times as long."""
_WILDCARD = re.compile(r"\*+")
DIRECTORY_SUFFIX = ".dir"
"""Ending of the hash of a directory, which is that of the list of its files."""
OBJECTS = "md5"


class UnsafeFileError(StageError, DvcException):  # type: ignore[misc]  # DVC has no types
    """A name of a file or an object that leads out of its folder. DVC prints it as an error of its own."""


def _write_in_utf8(original: Any, settings: Any, *arguments: Any, **options: Any) -> Any:
    settings.default_encoding = settings.default_encoding or "utf-8"
    return original(settings, *arguments, **options)


def check_places(repo: Repo) -> None:
    """Raise `UnsafeFileError` if DVC caches an output outside of the project *repo*: it fails to read one."""
    for output in repo.index.outs:
        path = Path(os.path.normpath(output.fs_path))  # an absolute path may contain ..
        if output.use_cache and not path.is_relative_to(repo.root_dir):
            raise UnsafeFileError(
                f"{output} is outside of {repo.root_dir}, and DVC caches only outputs of a project. Move it"
            )


def _check_list(original: Any, lst: Any, hash_name: str | None = None) -> Any:
    try:
        check_file_names([entry["relpath"] for entry in lst], "a list of files in DVC's cache or remote")
    except StageError as error:
        raise UnsafeFileError(str(error)) from error
    return original(lst, hash_name=hash_name)


def _check_object(original: Any, store: Any, oid: Any) -> Any:
    if not (isinstance(oid, str) and _OBJECT.fullmatch(oid)):
        raise UnsafeFileError(
            f"{str(oid)[:100]!r} is not a hash, so it names no file of DVC's cache or remote"
        )
    return original(store, oid)


def _check_yaml(original: Any, text: str, path: Any, typ: str = "safe") -> Any:
    """Parse the same *text* once, and with the parser in C unless DVC would keep comments of it."""
    try:
        if typ == "safe" or (Path(path).name == LOCKFILE.name and "#" not in text):
            return load_yaml(text) or {}
        content = original(text, path, typ=typ)
        check_aliases(text, content)
    except YAMLError as error:
        raise YAMLFileCorruptedError(path) from error
    return content


def _check_config(original: Any, config: Any, level: str) -> Any:
    content = original(config, level)
    for name, options in content.get("remote", {}).items():
        if level == "repo" and (named := sorted(_PROGRAM_OPTIONS.keys() & options)):
            raise UnsafeFileError(
                f".dvc/config sets {named[0]} of the remote {name}, {_PROGRAM_OPTIONS[named[0]]}. "
                "If you trust it, move the setting to .dvc/config.local: `dvc remote modify --local`"
            )
    return content


def _check_file(original: Any, path: Any, parser: Any, fs: Any = None, **options: Any) -> Any:
    about: dict[str, Any] = {}
    with suppress(FileNotFoundError):  # the original raises it too
        about = (fs or localfs).info(os.fspath(path))
    if about.get("type", "file") != "file" or (about.get("size") or 0) > MAX_YAML_BYTES:
        raise UnsafeFileError(
            f"{path} is not a regular file of at most {MAX_YAML_BYTES:,} bytes, so DVC does not read it"
        )
    return original(path, parser, fs=fs, **options)


def _check_matrix(original: Any, matrix: Any) -> Any:
    """Count the stages of all matrices of a file before DVC creates one of them."""
    values = original(matrix)
    count = math.prod(len(value) for value in values.values() if isinstance(value, Sized))
    matrix.resolver.matrix_stages = getattr(matrix.resolver, "matrix_stages", 0) + count
    if matrix.resolver.matrix_stages > MAX_MATRIX_STAGES:
        raise UnsafeFileError(
            f"{matrix.relpath}: the matrix of {matrix.name} makes {count:,} stages, but all matrices may "
            f"make {MAX_MATRIX_STAGES:,}. Write fewer values"
        )
    return values


def _check_patterns(original: Any, rules: Any, pattern_list: Iterable[Any], dirname: str, sep: str) -> None:
    patterns = list(pattern_list)
    for pattern in patterns:
        text = str(getattr(pattern, "patterns", pattern))
        parts = text.rstrip("*/").split("/")
        if max(len(_WILDCARD.findall(part)) for part in parts) > MAX_WILDCARDS or (
            parts[1:].count("**") > MAX_WILDCARDS
        ):
            raise UnsafeFileError(
                f".dvcignore in {dirname} has the pattern {text[:60]!r}, whose wildcards may take hours to "
                f"match. Write at most {MAX_WILDCARDS} between two slashes"
            )
    original(rules, patterns, dirname, sep)


CHECKS = (
    Patch(
        "dvc_data.hashfile.tree:Tree.from_list",
        "DVC writes through a path in a list of files that leads out of the directory",
        "(lst, hash_name=None)",
        SUPPORTED,
        _check_list,
    ),
    Patch(
        "dvc_data.hashfile.db:HashFileDB.oid_to_path",
        "DVC reads and removes the file that the hash of an object names, wherever it is",
        "(self, oid)",
        SUPPORTED,
        _check_object,
    ),
    Patch(
        "dvc_data.hashfile.db.local:LocalHashFileDB.oid_to_path",
        "The same, for the cache",
        "(self, oid)",
        SUPPORTED,
        _check_object,
    ),
    Patch(
        "dvc.utils.serialize._yaml:parse_yaml",
        "DVC expands aliases that stand for billions of values",
        "(text, path, typ='safe')",
        "3.67.1",
        _check_yaml,
    ),
    Patch(
        "dvc.utils.strictyaml:parse_yaml",
        "The same function",
        "(text, path, typ='safe')",
        "3.67.1",
        _check_yaml,
    ),
    Patch(
        "dvc.config:Config._load_config",
        "The committed .dvc/config may name a program for WebDAV, or a file for S3 that names one",
        "(self, level)",
        "3.67.1",
        _check_config,
    ),
    *(
        Patch(
            f"dvc.utils.serialize.{module}:_load_data",
            "DVC reads a file that dvc.yaml names whatever its size, also a device without an end",
            "(path, parser, fs=None, **kwargs)",
            "3.67.1",
            _check_file,
        )
        for module in ("_yaml", "_toml", "_json", "_py")
    ),
    Patch(
        "dvc.parsing:MatrixDefinition._resolve_matrix_data",
        "DVC creates all stages of a matrix, also billions",
        "(self)",
        "3.67.1",
        _check_matrix,
    ),
    Patch(
        "dvc.ignore:DvcIgnorePatterns.__init__",
        "DVC matches patterns with regular expressions, some of which take hours",
        "(self, pattern_list, dirname, sep)",
        "3.67.1",
        _check_patterns,
    ),
    Patch(
        "configobj:ConfigObj.write",
        "DVC writes its settings in ASCII, and the path of a cache may have other letters",
        "(self, outfile=None, section=None)",
        "5.0.9",
        _write_in_utf8,
    ),
)
"""The names that `apply_checks` replaces, a part of ``pipeline.engine.dvc_patches.PATCHES``."""


def apply_checks() -> None:
    """Have DVC refuse such files in this process: it raises `UnsafeFileError`, or its own error about YAML.

    It also writes its settings in UTF-8. Raises `StageError` if a name does not match the installed DVC.
    """
    apply_patches(CHECKS)


@contextmanager
def open_repository(root: Path) -> Iterator[Repo]:
    """Open the project in *root*, or above it. Raises `StageError` in the block for an error of DVC."""
    try:
        with Repo(str(root)) as repo:
            yield repo
    except StageError:
        raise
    except DvcException as error:
        raise StageError(f"DVC cannot read the stages of {root}: {error}. Run `dvc stage list`") from error


def remove_damaged_outputs(root: Path) -> None:
    """Remove from the cache the damaged files of the recorded stage outputs of the project in *root*.

    Data that DVC tracks and no stage writes cannot be computed again, so it is left to `learner doctor`.
    Raises `StageError` if DVC cannot read the stages.
    """
    with open_repository(root) as repo:
        for output in repo.index.outs:
            if not output.stage.is_data_source:
                remove_damaged_output(output)


def remove_damaged_output(output: Output) -> None:
    """Remove from the cache what is damaged of *output*: its files, or the list of its files."""
    if not (output.use_cache and output.hash_info and output.hash_info.name == OBJECTS):
        return
    cache, oid = Path(output.cache.path), str(output.hash_info.value)
    remove_if_damaged(cache, oid)
    for file_oid in list_files(cache, oid).values():
        remove_if_damaged(cache, file_oid)


def list_files(cache: Path, oid: str) -> dict[str, str]:
    """Return path to hash of each file in the directory *oid*.

    Empty for the hash of a file, and for a list that is missing or damaged. Raises `StageError` if DVC cannot
    have written the list.
    """
    place = object_path(cache, oid)
    if not oid.endswith(DIRECTORY_SUFFIX) or not place.exists() or is_damaged(place, oid):
        return {}
    return parse_file_list(read_regular(place), place)


def object_path(cache: Path, oid: str) -> Path:
    """Return the path of the object *oid* in the local *cache*. Raises `StageError` if it is not a hash."""
    if not is_md5(oid):
        raise StageError(f"{oid[:100]!r} is not a hash of DVC, so it names no file of {cache}")
    return cache / oid[:2] / oid[2:]


def remove_damaged_files(files: DVCFileSystem, path: str) -> None:
    """Remove from the cache what is damaged of the file or directory *path* in the revision *files*."""
    cache = Path(files.repo.cache.local.path)
    for entry in files.find(path, detail=True).values():
        if md5 := entry.get("md5"):
            remove_if_damaged(cache, md5)


def remove_if_damaged(cache: Path, oid: str) -> None:
    """Remove the object *oid* from *cache* if its content does not have that hash."""
    place = object_path(cache, oid)
    if place.exists() and is_damaged(place, oid):
        remove_from_cache(place, cache)


def is_damaged(place: Path, oid: str) -> bool:
    """Return whether the content of the cached file *place* does not have the hash *oid*."""
    try:
        return md5(place) not in (None, oid.removesuffix(DIRECTORY_SUFFIX))
    except OSError as error:
        raise StageError(f"{place}: cannot be read: {error.strerror}. Make it readable") from error


def is_damaged_entry(entry: Path) -> bool:
    """Return whether the run-cache entry *entry* does not have the content that its path names."""
    try:
        content = COMPILED_LOCK_FILE_STAGE_SCHEMA(load_file(entry))
        hashed = run_cache._get_cache_hash  # noqa: SLF001
        is_named = hashed(deepcopy(content)) == entry.name
        return not (is_named and hashed(deepcopy(content), key=True) == entry.parent.name)
    except FileNotFoundError:
        return False
    except (YAMLFileCorruptedError, Invalid, ValueError, TypeError, KeyError, AttributeError):
        return True


def find_damaged_files(root: Path) -> Iterator[Path]:
    """Yield every damaged file of the cache *root*: objects, lists of directories, and run-cache entries."""
    for place in sorted((root / "files" / OBJECTS).glob("??/*")):
        oid = place.parent.name + place.name
        if is_md5(oid) and is_below(place, root) and is_damaged(place, oid):
            yield place
    for entry in sorted((root / "runs").glob("??/*/*")):
        if not entry.name.endswith(".tmp") and is_damaged_entry(entry):
            yield entry


def remove_from_cache(place: Path, root: Path) -> None:
    """Remove the damaged file *place* from the cache *root*, with a warning on standard error.

    Raises `StageError` if a link leads to another folder.
    """
    if not is_below(place, root):
        raise StageError(
            f"{place} is damaged, but a link leads from {root} to another folder. Remove the link"
        )
    print_error(f"warning: removed {place} from DVC's cache: its content was damaged")
    with suppress(FileNotFoundError):
        place.unlink()
