"""Checks, in DVC itself, of files that a stranger may have written.

DVC writes through a name in a list that leads out of its folder when it checks out, removes a file that an
object names if its content has another hash, and does not return from a walk through such a list. Its remote
for S3 runs the program that a file of settings names, and it expands all aliases in YAML.
"""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dvc.config import Config
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.utils import strictyaml
from dvc.utils.serialize import YAMLFileCorruptedError, _yaml
from dvc_data.hashfile.db import HashFileDB
from dvc_data.hashfile.db.local import LocalHashFileDB
from dvc_data.hashfile.tree import Tree
from ruamel.yaml.error import YAMLError

from pipeline.project.yaml_files import check_aliases
from stages.contracts.errors import StageError
from stages.contracts.file_lists import check_file_names
from stages.system.patches import Patch, check_patches

SUPPORTED = "3.18.3"
CHECKS = (
    Patch(
        "dvc_data.hashfile.tree:Tree.from_list",
        "DVC writes through a path in a list of files that leads out of the directory",
        "(lst, hash_name=None)",
        SUPPORTED,
    ),
    Patch(
        "dvc_data.hashfile.db:HashFileDB.oid_to_path",
        "DVC reads and removes the file that the hash of an object names, wherever it is",
        "(self, oid)",
        SUPPORTED,
    ),
    Patch(
        "dvc_data.hashfile.db.local:LocalHashFileDB.oid_to_path",
        "The same, for the cache",
        "(self, oid)",
        SUPPORTED,
    ),
    Patch(
        "dvc.utils.serialize._yaml:parse_yaml",
        "DVC expands aliases that stand for billions of values",
        "(text, path, typ='safe')",
        "3.67.1",
    ),
    Patch("dvc.utils.strictyaml:parse_yaml", "The same function", "(text, path, typ='safe')", "3.67.1"),
    Patch(
        "dvc.config:Config._load_config",
        "A file of settings for S3, which the committed .dvc/config may name, can name a program",
        "(self, level)",
        "3.67.1",
    ),
)
"""The names that `apply_checks` replaces, a part of ``pipeline.engine.dvc_patches.PATCHES``."""
_OBJECT = re.compile(r"[0-9A-Za-z_-]+(\.dir)?(\.unpacked)?")
"""Names of objects, whose beginnings are names too. That of an object of ours is a hash (see `is_md5`)."""
_SETTINGS_FILES = {"configpath", "credentialpath"}
"""Options of a remote that name a file in which ``credential_process`` is a program that boto3 runs."""


class UnsafeFileError(StageError, DvcException):  # type: ignore[misc]  # DVC has no types
    """A name of a file or an object that leads out of its folder. DVC prints it as an error of its own."""


@functools.cache
def apply_checks() -> None:
    """Have DVC refuse such files in this process: it raises `UnsafeFileError`, or its own error about YAML.

    Raises `StageError` if a name does not match the installed DVC.
    """
    check_patches(CHECKS)
    lists: Any = Tree
    lists.from_list = classmethod(_check_list(lists.from_list.__func__))
    _yaml.parse_yaml = strictyaml.parse_yaml = _check_yaml(_yaml.parse_yaml)
    Config._load_config = _check_config(Config._load_config)  # noqa: SLF001
    stores: tuple[Any, ...] = (HashFileDB, LocalHashFileDB)
    for store in stores:
        store.oid_to_path = _check_object(store.oid_to_path)


def check_places(repo: Repo) -> None:
    """Raise `UnsafeFileError` if DVC caches an output outside of the project *repo*: it fails to read one."""
    for output in repo.index.outs:
        path = Path(os.path.normpath(output.fs_path))  # an absolute path may contain ..
        if output.use_cache and not path.is_relative_to(repo.root_dir):
            raise UnsafeFileError(
                f"{output} is outside of {repo.root_dir}, and DVC caches only outputs of a project. Move it"
            )


def _check_list(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_list(cls: Any, lst: Any, hash_name: str | None = None) -> Any:
        try:
            check_file_names([each["relpath"] for each in lst], "a list of files in DVC's cache or remote")
        except StageError as error:
            raise UnsafeFileError(str(error)) from error
        return original(cls, lst, hash_name=hash_name)

    return from_list


def _check_object(original: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    @functools.wraps(original)
    def oid_to_path(self: Any, oid: Any) -> str:
        if not (isinstance(oid, str) and _OBJECT.fullmatch(oid)):
            raise UnsafeFileError(
                f"{str(oid)[:100]!r} is not a hash, so it names no file of DVC's cache or remote"
            )
        return original(self, oid)

    return oid_to_path


def _check_yaml(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def parse_yaml(text: str, path: Any, typ: str = "safe") -> Any:
        content = original(text, path, typ=typ)
        try:
            check_aliases(text, content)
        except YAMLError as error:
            raise YAMLFileCorruptedError(path) from error
        return content

    return parse_yaml


def _check_config(original: Callable[[Any, str], dict[str, Any]]) -> Callable[[Any, str], dict[str, Any]]:
    @functools.wraps(original)
    def _load_config(self: Any, level: str) -> dict[str, Any]:
        content = original(self, level)
        for name, options in content.get("remote", {}).items():
            if level == "repo" and (found := _SETTINGS_FILES.intersection(options)):
                raise UnsafeFileError(
                    f".dvc/config sets {found.pop()} of the remote {name}, a file that can name a program. "
                    "If you trust it, move the setting to .dvc/config.local: `dvc remote modify --local`"
                )
        return content

    return _load_config
