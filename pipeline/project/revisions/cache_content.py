"""Content checks of DVC's cache, against the hashes that name its files.

DVC treats a cached file as intact if it is read-only, and otherwise if its size, inode and modification time
are those in its state database; its setting ``verify`` does not change that for a local cache. So it restores
a damaged file as an output. The functions here read the content. `pipeline.engine.dvc_patches` makes DVC
call them in this process; a damaged file is removed, so that DVC fetches it or runs the stage again.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc.output import Output
from dvc.repo import Repo
from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
from dvc.stage import cache as run_cache
from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml
from voluptuous import Invalid

from stages.contracts.errors import StageError
from stages.contracts.file_lists import is_below, is_md5, parse_file_list
from stages.contracts.printing import print_error
from stages.system.files import read_regular

DIRECTORY_SUFFIX = ".dir"
"""Ending of the hash of a directory, which is that of the list of its files."""
OBJECTS = "md5"


def remove_damaged_outputs(root: Path) -> None:
    """Remove from the cache the damaged files of the recorded stage outputs of the project in *root*.

    Data that DVC tracks and no stage writes cannot be computed again, so it is left to `learner doctor`.
    Raises `StageError` if DVC cannot read the stages.
    """
    with Repo(str(root)) as repo:
        try:
            outputs = repo.index.outs
        except DvcException as error:
            raise StageError(
                f"DVC cannot read the stages of {root}: {error}. Run `dvc stage list`"
            ) from error
        for output in outputs:
            if not output.stage.is_data_source:
                remove_damaged_output(output)


def remove_damaged_output(output: Output) -> None:
    """Remove from the cache what is damaged of *output*: its files, or the list of its files."""
    if not (output.use_cache and output.hash_info and output.hash_info.name == OBJECTS):
        return
    cache, oid = Path(output.cache.path), str(output.hash_info.value)
    remove_if_damaged(cache, oid)
    for each in list_files(cache, oid).values():
        remove_if_damaged(cache, each)


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
    for each in files.find(path, detail=True).values():
        if md5 := each.get("md5"):
            remove_if_damaged(cache, md5)


def remove_if_damaged(cache: Path, oid: str) -> None:
    """Remove the object *oid* from *cache* if its content does not have that hash."""
    place = object_path(cache, oid)
    if place.exists() and is_damaged(place, oid):
        remove_from_cache(place, cache)


def is_damaged(place: Path, oid: str) -> bool:
    """Return whether the content of the cached file *place* does not have the hash *oid*."""
    try:
        with place.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StageError(f"{place}: cannot be read: {error.strerror}. Make it readable") from error
    return digest != oid.removesuffix(DIRECTORY_SUFFIX)


def is_damaged_entry(entry: Path) -> bool:
    """Return whether the run-cache entry *entry* does not have the content that its path names."""
    try:
        content = COMPILED_LOCK_FILE_STAGE_SCHEMA(load_yaml(entry))
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
