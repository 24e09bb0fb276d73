"""Checks of what stages use and write: the deps in dvc.yaml, untracked files, and the outputs.

`dvc exp run --temp` and the queue copy only what git and DVC track. With ``learner doctor --deep``, the names
of the outputs, the hash of each file, and each record are verified.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from dvc.repo import Repo

from pipeline.doctor.diagnostics import Diagnostic, ok, problem, warning
from pipeline.project.dependencies import find_modules, list_missing_deps
from pipeline.project.git import find_top, list_tracked_files, run_git
from pipeline.project.inputs import find_data_files, find_missing_data
from pipeline.project.params import Params, read_params
from pipeline.project.revisions.dvc_checks import (
    OBJECTS,
    check_places,
    is_damaged,
    list_files,
    object_path,
    open_repository,
)
from pipeline.project.snapshot import list_paths, resolve_stages
from pipeline.project.versions import find_stale_versions
from pipeline.project.yaml_files import read_definition
from stages.contracts.errors import StageError
from stages.contracts.text import join_names
from stages.runs.verification import Verdict, find_records, verify_path
from stages.system.files import is_below

MAX_LISTED_FILES = 5


def check_project() -> Iterator[Diagnostic]:
    """Check params.yaml and the data it names, the deps in dvc.yaml, and versions.yaml.

    Raises `ParamsError` if params.yaml is not valid.
    """
    params = read_params()
    for line in find_missing_data(params):
        message, _, remedy = line.rpartition(". ")
        yield problem("data", message, remedy)
    for stage, paths in list_missing_deps(params).items():
        for path in paths:
            message = f"dvc.yaml: an edit of {path} would not rerun {stage}"
            yield problem("deps", message, f"add to deps of {stage} in dvc.yaml:\n      - {path}")
    for line in find_stale_versions():
        message, _, remedy = line.removeprefix("versions.yaml: ").partition(". ")
        yield problem("versions", message, remedy)
    yield ok("params", "params.yaml is valid")


def check_untracked_files() -> Iterator[Diagnostic]:
    """Check that git or DVC tracks the files that stages use, and list other files that git lacks."""
    if find_top(Path()) is None:
        message = "this folder is not a git repository, and DVC stores experiments as git commits"
        yield problem("untracked", message, "git init")
        return
    new = run_git(Path(), "ls-files", "-z", "--others", "--exclude-standard").split("\0")[:-1]
    tracked = {path for file in list_tracked_files(Path()) for path in (file, *file.parents)}
    used = sorted(_find_used_files(read_params()))
    missing = [
        path
        for path in used
        if _is_inside(path) and path.exists() and not (path in tracked or _has_pointer(path))
    ]
    for path in missing:
        message = (
            f"a stage uses {path}, which neither git nor DVC tracks: `dvc exp run --temp` does not copy it"
        )
        name = quote(str(path))
        yield problem("untracked", message, f"git add {name}; or, for data, dvc add {name}")
    for path in used:
        if not _is_inside(path):
            message = f"{path} is outside this project: `dvc exp run --temp` runs in another folder"
            yield warning("untracked", message, f"use the absolute path: {path.resolve()}")
    others = [name for name in new if not any(Path(name).is_relative_to(path) for path in missing)]
    if others:
        listed = join_names(others, MAX_LISTED_FILES)
        message = f"not in git, so `dvc exp run --temp` does not copy them: {listed}"
        yield warning(
            "untracked", message, "`git add` what a stage reads (without a commit); ignore the rest"
        )
    if not missing and not others:
        yield ok("untracked", "git or DVC tracks every file that `dvc exp run --temp` needs")


def _find_used_files(params: Params) -> set[Path]:
    """Return the code and data that *params* and dvc.yaml name, except for outputs of stages."""
    stages = resolve_stages(read_definition()).values()
    used, outputs = (
        {Path(path) for stage in stages for path in list_paths(stage, key) if "://" not in path}
        for key in ("deps", "outs")
    )
    for section in (params.load_data, params.build_learner, params.fit):
        used |= {*find_modules(section), *find_data_files(section)}
    return {path for path in used if not (path.is_absolute() or outputs & {path, *path.parents})}


def _is_inside(path: Path) -> bool:
    return path.resolve().is_relative_to(Path.cwd())


def _has_pointer(path: Path) -> bool:
    """Return whether DVC tracks *path* with a ``.dvc`` file for it or for a parent folder."""
    return any(Path(f"{tracked}.dvc").exists() for tracked in (path, *path.parents) if tracked != Path())


def check_outputs() -> Iterator[Diagnostic]:
    """Verify the outputs that are present, and yield a problem for each file that differs from dvc.lock.

    Records and checkpoints are verified too, except for those beside such a file. Raises `StageError` if DVC
    would write an output outside of the project, or has an invalid name for it.
    """
    with open_repository(Path()) as repo:
        _check_names(repo)
        root, cache = Path(repo.root_dir), Path(repo.cache.local.path)
        hashes = dict(_list_files(repo))
        present = [path for path in hashes if path.is_file()]
        different = [path for path in present if is_damaged(path, hashes[path])]
        for path in different:
            yield _describe_difference(repo, path, hashes[path])
    if lacking := [path for path, md5 in hashes.items() if not object_path(cache, md5).exists()]:
        yield _describe_lacking(lacking)
    folders = {path.parent for path in different}
    verdicts = _verify_records(root, [path for path in present if path.parent not in folders])
    for verdict in verdicts:
        if verdict.problem:
            remedy = "The stage has written it in this way. Run `learner run --force`"
            yield problem("outputs", f"{verdict.name}: {verdict.problem}", remedy)
    if not different:
        yield ok("outputs", f"verified: {len(present)} files, {len(verdicts)} records and checkpoints")


def _check_names(repo: Repo) -> None:
    """Raise `StageError` if DVC would write an output of *repo* outside of it.

    Outputs are those of all dvc.yaml and .dvc files of the repository.
    """
    check_places(repo)
    root = Path(repo.root_dir)
    links = [root / path for path, is_link in list_tracked_files(root).items() if is_link]
    outside = [link for link in links if not link.resolve().is_relative_to(root.resolve())]
    for output in repo.index.outs:
        path = Path(output.fs_path)
        for link in outside:
            if link == path or link in path.parents or path in link.parents:
                raise StageError(
                    f"{output}: git tracks the link {link}, which leads out of this project, and DVC would "
                    "write there. Remove the link"
                )


def _list_files(repo: Repo) -> Iterator[tuple[Path, str]]:
    """Yield path and MD5 of each file that DVC caches; for a directory without its list, those of the output.

    Raises `StageError` for an invalid name.
    """
    cache = Path(repo.cache.local.path)
    for output in repo.index.outs:
        if not (output.use_cache and output.hash_info and output.hash_info.name == OBJECTS):
            continue
        path, md5 = Path(os.path.normpath(output.fs_path)), str(output.hash_info.value)
        files = list_files(cache, md5)
        if files:
            yield from ((path / name, file_md5) for name, file_md5 in files.items())
        else:
            yield path, md5


def _describe_difference(repo: Repo, path: Path, md5: str) -> Diagnostic:
    """Return the diagnostic of the file *path*, whose content does not have the hash *md5*.

    DVC's state has *md5* for a file that DVC restored from a damaged one, so that `dvc checkout` would keep
    it. A file that was edited later is not in the state, and has no fix.
    """
    name = os.path.relpath(path)
    message = f"{name} differs from dvc.lock: the MD5 of its content is not {md5}"
    _, state = repo.state.get(str(path), repo.fs)
    if state is None or state.value != md5 or not is_below(path, Path(repo.root_dir)):
        remedy = (
            f"`dvc checkout --force {quote(name)}` restores the recorded file, and `learner run` the stage's"
        )
        return problem("outputs", message, remedy)
    remedy = (
        f"rm {quote(name)}: `learner doctor --deep --fix` does it. Then `dvc pull` fetches it, or the next "
        "run computes it again. If it stays damaged, push it from a clone in which `learner doctor --deep` "
        "finds no problem"
    )
    return problem("outputs", message, remedy, partial(_remove_damaged, path, md5))


def _remove_damaged(path: Path, md5: str) -> None:
    if is_damaged(path, md5):
        with suppress(FileNotFoundError):
            path.unlink()


def _describe_lacking(paths: list[Path]) -> Diagnostic:
    names = join_names(map(os.path.relpath, paths), MAX_LISTED_FILES)
    message = f"DVC's cache lacks {len(paths)} recorded files: {names}"
    return warning("outputs", message, "dvc pull, or `dvc commit --force` if the workspace has them")


def _verify_records(root: Path, paths: Iterable[Path]) -> list[Verdict]:
    """Return the verdict on each record and each checkpoint among *paths*, which are below *root*."""
    with TemporaryDirectory() as folder:
        for path in paths:
            link = Path(folder) / path.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        if not any(find_records(Path(folder))):
            return []
        prefix = f"{folder}/"
        return [
            Verdict(verdict.name.replace(prefix, ""), verdict.problem and verdict.problem.replace(prefix, ""))
            for verdict in verify_path(Path(folder))
        ]
