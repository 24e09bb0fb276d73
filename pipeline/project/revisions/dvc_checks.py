"""Checks, in DVC itself, of files that a stranger may have written, and of the content of its cache.

DVC writes through a name in a list that leads out of its folder when it checks out, removes a file that an
object names if its content has another hash, and does not return from a walk through such a list. Its remotes
run programs: that for S3 the one that a file of settings names, and that for WebDAV a command for tokens. It
expands all aliases in YAML, all matrices of stages and all values of ``${…}``, reads devices, and matches any
pattern of .dvcignore.

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
from dvc.parsing.interpolate import KEYCRE
from dvc.repo import Repo
from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
from dvc.stage import cache as run_cache
from dvc.utils.serialize import YAMLFileCorruptedError
from dvc.utils.serialize import load_yaml as load_file
from ruamel.yaml.error import YAMLError
from voluptuous import Invalid

from pipeline.project.lockfile import LOCKFILE
from pipeline.project.snapshot import parse_ignore_rules
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
_STRING_BYTES = 64
"""Memory that a string of a stage takes in addition to its characters, at least."""
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
    _check_regular(path, fs)
    return original(path, parser, fs=fs, **options)


def _check_regular(path: Any, fs: Any) -> None:
    """Raise `UnsafeFileError` if *path* is neither missing nor a regular file of the size of a YAML file."""
    about: dict[str, Any] = {}
    with suppress(FileNotFoundError):  # DVC raises it too
        about = (fs or localfs).info(os.fspath(path))
    if about.get("type", "file") != "file" or (about.get("size") or 0) > MAX_YAML_BYTES:
        raise UnsafeFileError(
            f"{path} is not a regular file of at most {MAX_YAML_BYTES:,} bytes, so DVC does not read it"
        )


def _check_matrix(original: Any, matrix: Any) -> Any:
    """Count the stages of all matrices of a file before DVC creates one of them."""
    values = original(matrix)
    sizes = {name: len(value) for name, value in values.items() if isinstance(value, Sized)}
    count = math.prod(sizes.values())
    matrix.resolver.matrix_stages = getattr(matrix.resolver, "matrix_stages", 0) + count
    if matrix.resolver.matrix_stages > MAX_MATRIX_STAGES:
        raise UnsafeFileError(
            f"{matrix.relpath}: the matrix of {matrix.name} makes {count:,} stages, but all matrices may "
            f"make {MAX_MATRIX_STAGES:,}. Write fewer values"
        )
    for name in sizes if count else ():  # the name of each stage has one value of each list
        _count_text(
            matrix.context, sum(len(str(value)) for value in values[name]) * count // sizes[name], name
        )
    return values


def _find_values(_original: Any, template: str) -> list[re.Match[str]]:
    """Search each line up to its last brace, because each ``${`` without one is searched to the end."""
    matches: list[re.Match[str]] = []
    start = 0
    for line in template.split("\n"):
        matches += KEYCRE.finditer(template, start, start + line.rfind("}") + 1)
        start += len(line) + 1
    return matches


def _count_text(context: Any, length: int, name: str) -> None:
    """Add *length*, that of the string or the value *name*, to that of the file with the values *context*."""
    counter = _find_counter(context)
    counter[0] += length
    if counter[0] > MAX_YAML_BYTES:
        raise UnsafeFileError(
            f"a dvc.yaml has more than {MAX_YAML_BYTES:,} characters with the values for its ${{…}} in all "
            f"stages, {length:,} of them for {name[:60]!r}. Write shorter values, or fewer stages"
        )


def _find_counter(context: Any) -> list[int]:
    """Return the number of characters of the file whose values are in *context*, which its clones share."""
    counter: list[int] = context.__dict__.setdefault("learner_counter", [0])
    return counter


def _count_value(original: Any, context: Any, key: str, unwrap: bool = False) -> Any:  # noqa: FBT001, FBT002  DVC's signature
    value = original(context, key, unwrap)
    if unwrap:
        _count_text(context, len(str(value)), key)
    return value


def _count_string(original: Any, context: Any, src: str, *arguments: Any, **options: Any) -> Any:
    _count_text(context, len(src) + _STRING_BYTES, src)
    return original(context, src, *arguments, **options)


def _share_counter(original: Any, context: Any) -> Any:
    clone = original(context)
    clone.learner_counter = _find_counter(context)
    return clone


def _check_ignore_file(original: Any, path: str, fs: Any, name: str) -> Any:
    _check_regular(path, fs)
    try:
        return original(path, fs, name)
    except UnicodeDecodeError as error:
        raise UnsafeFileError(f"{path} is not text in UTF-8: {error}. Write it in UTF-8") from error


def _check_patterns(original: Any, rules: Any, pattern_list: Iterable[Any], dirname: str, sep: str) -> None:
    patterns = list(pattern_list)
    try:
        parse_ignore_rules([str(getattr(pattern, "patterns", pattern)) for pattern in patterns], dirname)
    except StageError as error:
        raise UnsafeFileError(str(error)) from error
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
    *(
        Patch(
            f"dvc.parsing.{module}:get_matches",
            "DVC searches each ${ of a string without a closing brace to the end, which takes hours",
            "(template)",
            "3.67.1",
            _find_values,
        )
        for module in ("interpolate", "context")
    ),
    Patch(
        "dvc.parsing.context:Context.select",
        "DVC writes a value of any size for each ${…}",
        "(self, key, unwrap=False)",
        "3.67.1",
        _count_value,
    ),
    Patch(
        "dvc.parsing.context:Context.resolve_str",
        "The same, for the strings of each stage of a matrix",
        "(self, src, unwrap=True, skip_interpolation_checks=False, key=None, config=None)",
        "3.67.1",
        _count_string,
    ),
    Patch(
        "dvc.parsing.context:Context.clone",
        "The same, for stages with vars",
        "(ctx)",
        "3.67.1",
        _share_counter,
    ),
    Patch(
        "dvc.ignore:DvcIgnorePatterns.__init__",
        "DVC matches patterns with regular expressions, some of which take hours",
        "(self, pattern_list, dirname, sep)",
        "3.67.1",
        _check_patterns,
    ),
    Patch(
        "dvc.ignore:DvcIgnorePatterns.from_file",
        "DVC reads a .dvcignore whatever its size, also a device without an end",
        "(path, fs, name)",
        "3.67.1",
        _check_ignore_file,
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
