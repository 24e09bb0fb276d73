"""The private names of DVC that this project replaces, and the functions that replace them.

`apply` checks the names and replaces them in this process. An import of this module replaces none.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from errno import ENOTSUP
from pathlib import Path
from typing import Any

from dvc.dvcfile import Lockfile
from dvc.env import DVC_ROOT, DVC_STAGE
from dvc.exceptions import CacheLinkError
from dvc.output import Output
from dvc.stage.serialize import to_single_stage_lockfile
from dvc_objects.fs.utils import copyfile, tmp_fname

from pipeline.engine.signals import DeferredSignals
from pipeline.project.lockfile import TEMPORARY_FILE, find_temporary_files, remove_temporary_files
from pipeline.project.revisions.dvc_checks import (
    CHECKS,
    is_damaged_entry,
    remove_damaged_output,
    remove_from_cache,
)
from stages.contracts.errors import StageFailedError
from stages.system.files import raise_unless_missing
from stages.system.patches import Patch, apply_patches


@dataclass
class StageCall:
    """A call of a function in place of the command of a stage."""

    function: Callable[[str], None]
    """A function that receives the name of the stage."""
    signals: DeferredSignals
    """The signals to deliver while the function or a command runs."""
    commands: Collection[str] | None = None
    """The commands to replace, with ``{name}`` for the name of the stage; DVC runs others. None means all."""
    announce: Callable[[Any], None] | None = None
    """Called with DVC's object of the stage before it runs."""
    has_started: bool = False

    def replaces(self, stage: Any) -> bool:
        """Return whether the function runs in place of the command of *stage*."""
        return self.commands is None or stage.cmd in [
            command.format(name=stage.name) for command in self.commands
        ]


_call: ContextVar[StageCall | None] = ContextVar("call", default=None)


@contextmanager
def replace_command(call: StageCall) -> Iterator[None]:
    """Have DVC make *call* instead of running the command of the stage that is reproduced in the block."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def _call_function(original: Any, stage: Any, dry: bool = False, run_env: Any = None) -> None:  # noqa: FBT001, FBT002  DVC's signature
    call = _call.get()
    if call is None or dry:
        original(stage, dry=dry, run_env=run_env)
        return
    call.has_started = True
    variables = {DVC_ROOT: stage.repo.root_dir, DVC_STAGE: stage.addressing}
    with _environment(variables), call.signals.delivery():
        if call.announce:
            call.announce(stage)
        if call.replaces(stage):
            call.function(stage.name)
        else:
            original(stage, run_env=run_env)


_unwritten: ContextVar[dict[Lockfile, list[Any]] | None] = ContextVar("unwritten", default=None)


@contextmanager
def write_lockfiles_once() -> Iterator[None]:
    """Have DVC write a dvc.lock at the end of the block, with all stages that ran, unless the block fails."""
    unwritten: dict[Lockfile, list[Any]] = {}
    token = _unwritten.set(unwritten)
    try:
        yield
    finally:
        _unwritten.reset(token)
    for lockfile, stages in unwritten.items():
        lockfile.dump_stages(stages)


def _collect_stages(original: Any, lockfile: Lockfile, stages: list[Any], **options: Any) -> None:
    unwritten = _unwritten.get()
    if unwritten is None or options:
        original(lockfile, stages, **options)
    else:
        unwritten.setdefault(lockfile, []).extend(stages)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment *variables* in the block, and restore the previous values afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _list_or_raise(
    _original: Any,
    system: Any,
    path: str,
    *_: Any,
    topdown: bool = True,
    detail: bool = False,
    **_options: Any,
) -> Iterator[tuple[str, Any, Any]]:
    for root, folders, files in os.walk(path, topdown=topdown, onerror=raise_unless_missing):
        if not detail:
            yield os.path.normpath(root), folders, files
            continue
        described: list[dict[str, Any]] = [
            {name: system.info(f"{root}{os.sep}{name}") for name in names} for names in (folders, files)
        ]
        yield os.path.normpath(root), described[0], described[1]
        folders[:] = described[0]


def _verify_cached_outputs(original: Any, stage: Any) -> bool:
    for output in stage.outs:
        _remove_damage(output)
    return bool(original(stage))


def _verify_before_commit(original: Any, output: Output, *arguments: Any, **options: Any) -> None:
    _remove_damage(output)
    original(output, *arguments, **options)


def _remove_damage(output: Output) -> None:
    """Remove *output* from the cache if it is damaged, and the files beside it to which a killed DVC copied.

    This process has the lock of DVC, so no other one writes them.
    """
    remove_temporary_files(Path(output.fs_path).parent)
    remove_damaged_output(output)


def _raise_on_failure(original: Any, src: Any, dest: Any, *arguments: Any, **options: Any) -> Any:
    result = original(src, dest, *arguments, **options)
    if result.failed:
        raise StageFailedError(
            f"{len(result.failed)} of the files are not copied to DVC's cache {dest.path} (see above). "
            "Check its disk and its permissions, and run the same command again"
        )
    return result


@contextmanager
def _remove_on_error(path: Path) -> Iterator[None]:
    """Remove the file *path* if the block raises."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _put_or_remove(_original: Any, _system: Any, lpath: str, rpath: str, *_: Any, **_options: Any) -> None:
    folder = Path(rpath).parent
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / tmp_fname()
    with _remove_on_error(part):
        copyfile(lpath, str(part))
        part.replace(rpath)


def _test_links(original: Any, links: Any, from_fs: Any, from_path: str, *arguments: Any) -> Any:
    before = find_temporary_files(Path(from_path))
    try:
        return original(links, from_fs, from_path, *arguments)
    except OSError:
        for path in find_temporary_files(Path(from_path)) - before:
            with suppress(OSError):
                path.unlink()
        raise


def _dump_or_remove(original: Any, path: Any, *arguments: Any, **options: Any) -> None:
    is_temporary = TEMPORARY_FILE.fullmatch(Path(path).name)
    with _remove_on_error(Path(path)) if is_temporary else nullcontext():
        original(path, *arguments, **options)


def _explain_failed_copy(original: Any, output: Output, *arguments: Any, **options: Any) -> Any:
    try:
        return original(output, *arguments, **options)
    except CacheLinkError as error:
        cause = error.__context__ and error.__context__.__cause__
        if not isinstance(cause, OSError) or cause.errno == ENOTSUP:  # no kind of link is possible
            raise
        raise StageFailedError(
            f"{output} cannot be copied from DVC's cache: {cause.strerror}. "
            "Check its disk and its permissions, and run the same command again"
        ) from error


def _verify_entry(original: Any, cache: Any, key: str, value: str | None) -> Any:
    if value is None or value.endswith(".tmp"):  # DVC is writing the entry, or could not complete it
        return None
    entry = Path(cache.cache_dir, key[:2], key, value)
    if entry.exists() and is_damaged_entry(entry):
        remove_from_cache(entry, Path(cache.cache_dir))
    return original(cache, key, value)


def _load_entry_of_params(original: Any, cache: Any, stage: Any) -> Any:
    entry = original(cache, stage)
    has_params = entry and entry.get("params") == to_single_stage_lockfile(stage).get("params")
    return entry if has_params else None


SUPPORTED, SUPPORTED_OBJECTS, SUPPORTED_DATA = "3.67.1", "5.2.0", "3.18.3"
PATCHES: tuple[Patch, ...] = (
    Patch(
        "dvc.stage.run:cmd_run",
        "DVC runs a stage only as a command in a shell, and the flow calls a function in its own process",
        "(stage, dry=False, run_env=None)",
        SUPPORTED,
        _call_function,
    ),
    Patch(
        "dvc.stage:Stage.outs_cached",
        "DVC reuses cached outputs after a look at their size and time; the replacement reads their content",
        "(self)",
        SUPPORTED,
        _verify_cached_outputs,
    ),
    Patch(
        "dvc.output:Output.commit",
        "DVC does not copy an output over a cached file of that name, even if the cached file is damaged",
        "(self, filter_info=None, relink=True)",
        SUPPORTED,
        _verify_before_commit,
    ),
    Patch(
        "dvc.output:otransfer",
        "DVC records outputs although a file of them could not be written to the cache",
        None,
        SUPPORTED,
        _raise_on_failure,
    ),
    Patch(
        "dvc_objects.fs.local:FsspecLocalFileSystem.put_file",
        "DVC leaves its temporary file if a copy fails",
        "(self, lpath, rpath, callback=None, **kwargs)",
        SUPPORTED_OBJECTS,
        _put_or_remove,
    ),
    Patch(
        "dvc_data.hashfile.checkout:test_links",
        "DVC leaves the file with which it tests kinds of links if it cannot be written",
        "(links, from_fs, from_path, to_fs, to_path)",
        SUPPORTED_DATA,
        _test_links,
    ),
    Patch(
        "dvc.utils.serialize:dump_yaml",
        "DVC leaves its temporary file if an entry of the run-cache cannot be written",
        "(path, data, fs=None, **kwargs)",
        SUPPORTED,
        _dump_or_remove,
    ),
    Patch(
        "dvc.output:Output._checkout",
        "DVC reports any error of a copy from its cache as a kind of link that is not possible",
        "(self, *args, **kwargs)",
        SUPPORTED,
        _explain_failed_copy,
    ),
    Patch(
        "dvc.stage.cache:StageCache._load_cache",
        "DVC does not verify the hash of an entry of the run-cache, and fails if its folder is empty",
        "(self, key, value)",
        SUPPORTED,
        _verify_entry,
    ),
    Patch(
        "dvc.stage.cache:StageCache._load",
        "DVC restores an entry of the run-cache although a param named size or nfiles has another value",
        "(self, stage)",
        SUPPORTED,
        _load_entry_of_params,
    ),
    Patch(
        "dvc.dvcfile:Lockfile.dump_stages",
        "DVC parses and writes dvc.lock again after each stage; a point of a sweep writes it once",
        "(self, stages, **kwargs)",
        SUPPORTED,
        _collect_stages,
    ),
    Patch(
        "dvc_objects.fs.local:FsspecLocalFileSystem.walk",
        "DVC records a folder that cannot be listed as an empty one",
        "(self, path, maxdepth=None, topdown=True, detail=False, **kwargs)",
        SUPPORTED_OBJECTS,
        _list_or_raise,
    ),
    *CHECKS,
    Patch(
        "dvc.repo.experiments.executor.local:TempDirExecutor._get_top_level_paths",
        "Only called, not replaced: the metrics, params and plots that an experiment has",
        "(repo)",
        SUPPORTED,
    ),
    Patch(
        "dvc.stage.utils:_get_stage_files",
        "Only called, not replaced: the files of a stage that git tracks",
        "(stage)",
        SUPPORTED,
    ),
    Patch(
        "dvc.stage.cache:_get_cache_hash",
        "Only called, not replaced: it is the hash that names an entry of the run-cache",
        "(cache, key=False)",
        SUPPORTED,
    ),
)


def apply() -> None:
    """Replace the names in `PATCHES` in this process. Raises the error of `apply_patches`."""
    apply_patches(PATCHES)
