"""The files that the stages of dvc.yaml depend on, compared with their ``deps``.

These files are found in two ways: before a stage runs, from params.yaml and from the imports in the code; and
while it runs, from what the user's code reads (`pipeline.project.reads`). `learner check` reports them all.

A stage does not start if its deps lack a file of the first kind that it will read for certain, and its
outputs are not recorded if they lack one that it has read. A folder in deps covers what is below it.
Requirements pin installed packages, and `stages` and `pipeline` have versions: they are not files of the
project. A module that only a logger uses changes no number, so it is not needed in deps.
"""

import json
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.project.imports import (
    PACKAGE,
    find_imports,
    find_module,
    find_named_files,
    has_code,
    is_of_project,
    list_import_folders,
    list_methods,
)
from pipeline.project.inputs import CODE_KEYS, find_data_files, list_strings, overlaps
from pipeline.project.params import PARAMS, Params
from pipeline.project.paths import read_paths, runs_root
from pipeline.project.reads import record_reads
from pipeline.project.snapshot import list_paths, read_ignore_rules, resolve_stages
from pipeline.project.versions import VERSIONS
from pipeline.project.yaml_files import DEFINITION, add_deps, read_definition
from stages.contracts.errors import ParamsError, StageError
from stages.data.config import ImageFolder, TorchDatasets
from stages.runs.layout import MISSING_DEPS
from stages.system.files import read_json, read_json_value, sha256, write_text

MAX_FILES = 5
"""Files in a folder of data after which the folder is reported instead."""
SECTIONS_BY_STAGE = {
    "load-data": ("load_data",),
    "build-learner": ("build_learner",),
    "fit": ("build_learner", "fit"),
}
"""The sections of params.yaml that name the code that a stage runs."""
OUTPUT_KEYS = ("loggers", "telemetry")
"""The keys of ``fit`` whose parts change no number, so that an edit of them reruns nothing."""
TOKENIZER = "tokenizer"
"""The argument of a text source that is the name of a tokenizer, or the path of one."""
PIPELINE_FILES = ("params.yaml", "dvc.yaml", "dvc.lock", "versions.yaml")
"""Files that this package reads in each stage, and whose content DVC compares by keys."""
Deps = dict[str, list[Path]]
"""Paths of files and folders by the name of a stage."""


def find_missing_deps(params: Params) -> list[str]:
    """Return a line for each file that a stage depends on and that its deps lack."""
    return [
        f"dvc.yaml: an edit of {path} would not rerun {stage}; add to its deps:\n      - {path}"
        for stage, paths in list_missing_deps(params).items()
        for path in paths
    ]


def fix_deps(params: Params) -> Iterator[str]:
    """Add the missing deps to dvc.yaml, and yield a line for each.

    Raises `ParamsError`, and writes nothing, if the deps of a stage are in a form that cannot be edited.
    """
    missing = list_missing_deps(params)
    if missing:
        write_text(DEFINITION, add_deps(DEFINITION.read_bytes().decode(), missing))
    for stage, files in missing.items():
        yield from (f"{DEFINITION}: added {file} to the deps of {stage}" for file in files)


def list_missing_deps(params: Params) -> Deps:
    """Return the files that each stage depends on and that its deps lack.

    A file that does not exist and that no stage writes is left out: DVC refuses to run a stage with such a
    dependency.
    """
    noted = _read_notes()
    declared = _read_declared()
    outputs = [output for entry in declared.values() for output in entry.outs]
    missing = {
        stage: [
            path
            for path in {*_find_used_files(stage, params, entry), *noted.get(stage, ())}
            if not entry.covers(path) and (path.exists() or overlaps(path, outputs))
        ]
        for stage, entry in declared.items()
    }
    return {stage: _simplify(paths) for stage, paths in missing.items() if paths}


@dataclass(frozen=True)
class Declared:
    """The deps and the outputs of a stage in dvc.yaml."""

    command: str
    deps: list[Path]
    outs: list[Path]

    def covers(self, path: Path) -> bool:
        """Return whether *path* is in deps or below one, or an output of the stage itself.

        DVC leaves files that .dvcignore excludes out of the hash of a folder, and what links to folders
        lead to.
        """
        if path in self.deps or _is_below(path, self.outs):
            return True
        if read_ignore_rules().match_file(path):
            return False
        declared = [entry.resolve() for entry in (*self.deps, *self.outs)]
        target = path.resolve()
        name = target if path.is_dir() else path.parent.resolve() / path.name
        return _is_below(target, declared) or _is_below(name, declared)

    def build_filter(self) -> Callable[[str], bool]:
        """Return the fast form of `covers` for absolute paths; it leaves paths with links to `covers`."""
        deps, outs = map(_to_names, (self.deps, self.outs))
        linked = _to_names(link for path in self.deps for link in _find_linked_folders(path))
        base, names = f"{Path.cwd()}{os.sep}", deps | outs
        below_deps, below_outs, below_links = (
            tuple(f"{name}{os.sep}" for name in paths) for paths in (deps, outs, linked)
        )
        ignored = read_ignore_rules()
        return lambda path: (
            path in names
            or path.startswith(below_outs)
            or (
                path.startswith(below_deps)
                and not path.startswith(below_links)
                and not ignored.match_file(path.removeprefix(base))
            )
        )


def _read_declared() -> dict[str, Declared]:
    return {
        name: Declared(
            str(stage.get("cmd")),
            [_normalize(path) for path in list_paths(stage, "deps")],
            [_normalize(path) for path in list_paths(stage, "outs")],
        )
        for name, stage in resolve_stages(read_definition()).items()
    }


def _to_names(paths: Iterable[Path]) -> frozenset[str]:
    """Return the absolute names of *paths*."""
    return frozenset(str(path.absolute()) for path in paths)


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _normalize(path: Path | str) -> Path:
    """Return *path* without ``..`` in the middle, and relative to the current folder if it is below that."""
    base = os.getcwd()  # noqa: PTH109  ten times as fast
    place = os.path.normpath(os.path.join(base, path))  # noqa: PTH118  ten times as fast
    if place == base or place.startswith(f"{base}{os.sep}"):
        return Path(place[len(base) + 1 :])
    return Path(place if os.path.isabs(path) else os.path.normpath(path))  # noqa: PTH117


def _simplify(paths: Iterable[Path]) -> list[Path]:
    """Return *paths* without those below others, sorted; a folder of data in place of many of its files."""
    by_folder = defaultdict[Path, list[Path]](list)
    for path in {_normalize(path) for path in paths}:
        by_folder[path.parent].append(path)
    tops = set()
    for folder, files in by_folder.items():
        are_many = sum(not path.is_dir() for path in files) > MAX_FILES
        tops |= {folder} if are_many and _has_data_only(folder) else set(files)
    return sorted(path for path in tops if not tops.intersection(path.parents))


def _has_data_only(folder: Path) -> bool:
    """Return whether *folder* has no code, an edit of which would rerun stages that do not use it."""
    is_top = (folder / "dvc.yaml").exists() or folder == Path(folder.anchor)
    return not is_top and not any(folder.glob("*.py"))


def _find_used_files(stage: str, params: Params, declared: Declared, *, certain: bool = False) -> set[Path]:
    """Return the code and the data that *stage* uses according to params and to its code.

    With *certain*, return what it reads in any case, and that exists. An output of the pipeline is left out:
    DVC removes it before the stage, which then has an error of its own.
    """
    section_of = _read_sections(params)
    sections = SECTIONS_BY_STAGE.get(stage, ())
    data = {*_find_named_data(section_of[sections[-1]], certain=certain)} if sections else set[Path]()
    if stage == "fit":
        data |= {*_find_indexed_files(params)}
        if _reads_dataset(params):
            data |= {*_find_named_data(params.load_data, certain=certain)}
            sections = (*sections, "load_data")
    has_test_split = not certain or "test" in _read_dataset().get("counts", ())
    if stage == "save-model" and "test" in _read_paths() and has_test_split:  # it runs the code of the model
        sections = SECTIONS_BY_STAGE["fit"]
    modules = {path for section in sections for path in find_modules(section_of[section])}
    modules |= set() if certain else {*_find_programs(declared.command)}
    if certain:
        modules = {path for path in modules if is_of_project(path)}
        ours = [entry for name, entry in _read_declared().items() if name in VERSIONS]
        outputs = {output for entry in ours for output in entry.outs}
        data = {path for path in data if path.exists() and outputs.isdisjoint([path, *path.parents])}
    code = [path / PACKAGE if path.is_dir() else path for path in modules]
    return modules | data | find_imports(code, certain=certain)


def _read_sections(params: Params) -> dict[str, Any]:
    """Return the sections of *params* by name, without the parts that change no number."""
    fit = params.fit.model_copy(update=dict.fromkeys(OUTPUT_KEYS, ()))
    return {**dict(params), "fit": fit}


def find_modules(config: BaseModel) -> Iterator[Path]:
    """Yield the modules and packages of the project that *config* names at any depth."""
    folders = list_import_folders()
    for name, value, _ in list_strings(config):
        is_code = name.rpartition(".")[2] in CODE_KEYS and ":" in value
        path = find_module(value.partition(":")[0], folders) if is_code else None
        if path is not None:
            yield path


def _find_programs(command: str) -> Iterator[Path]:
    """Yield the programs of the project that *command*, that of a stage, runs."""
    words = shlex.split(command)
    for previous, word in zip(["", *words], words, strict=False):
        if word.endswith(".py") and Path(word).is_file():
            yield Path(word)
            continue
        path = find_module(word, [Path()]) if previous == "-m" else None
        if path is not None and is_of_project(path):
            yield path


def _find_named_data(config: BaseModel, *, certain: bool) -> Iterator[Path]:
    """Yield what *config* names as data; if not *certain*, also any argument of a part that is a file."""
    for path in find_data_files(config):
        yield path
        if path != Path():  # a source of the whole project reads what its labels name
            yield from _find_linked_folders(path)
    for name, value, _ in list_strings(config):
        is_argument = ("." in value or "/" in value) and not certain
        if (is_argument or name.endswith(TOKENIZER)) and os.path.isfile(value):  # noqa: PTH113  any text
            yield Path(value)


def _find_linked_folders(root: Path) -> Iterator[Path]:
    """Yield the links to folders in *root*, at any depth, also in the folders that they lead to.

    Names that start with a dot are left out, as in a folder of data.
    """
    waiting, seen = [root], {root.resolve()}
    while waiting:
        for folder, names, _ in os.walk(waiting.pop()):
            names[:] = sorted(name for name in names if not name.startswith("."))
            for link in (path for path in map(Path(folder).joinpath, names) if path.is_symlink()):
                yield link
                if (target := link.resolve()) not in seen:
                    seen.add(target)
                    waiting.append(link)


def _find_indexed_files(params: Params) -> Iterator[Path]:
    """Yield the folders whose files fit reads, if load-data writes or has written an index."""
    source, materialize = params.load_data.source, params.load_data.materialize
    if not isinstance(source, ImageFolder) or materialize == "tensors":
        return
    if materialize == "index" or "index" in _read_dataset():
        for path in filter(None, (source.path, source.masks)):
            yield Path(path)
            yield from _find_linked_folders(Path(path))


def _reads_dataset(params: Params) -> bool:
    """Return whether fit runs the code of a dataset; load-data stores the samples of an iterable one."""
    source = params.load_data.source
    if not isinstance(source, TorchDatasets) or not source.lazy:
        return False
    if described := _read_dataset():
        return "factory" in described
    module, _, name = source.factory.kind.partition(":")
    path = find_module(module, list_import_folders())
    methods = set() if path is None else list_methods(path, name)
    return "__iter__" not in methods or "__getitem__" in methods


def _read_dataset() -> dict[str, Any]:
    """Return the content of dataset.json; empty if load-data has not written it."""
    return read_json(Path(_read_paths().get("dataset", ""))) or {}


def _read_paths() -> dict[str, Path]:
    """Return the paths in ``vars`` of dvc.yaml; none if it has only stages of the user."""
    with suppress(ParamsError):
        return dict(read_paths())
    return {}


@dataclass(frozen=True)
class DepsGuard:
    """The check of what a stage in the current folder has read; `guard_deps` creates it."""

    stage: str
    declared: Declared
    modules: frozenset[str]
    """The code of the stage that is known before it runs, by absolute paths as all of these."""
    lazy: frozenset[str]
    """Modules that this code may import; an earlier stage of the same process may have loaded them."""
    loggers: frozenset[str]
    """Modules that only loggers use."""

    def check(self) -> None:
        """Raise `StageError` if the stage has read a file that its deps do not cover, and note that file."""
        readers = self._find_uncovered()
        if readers:
            _write_notes(self.stage, readers)
            raise _build_error(self.stage, readers)

    def check_if_grown(self) -> None:
        """Check after each step of a training, which is fast as long as nothing else was read."""
        recorder = record_reads()
        if recorder.count() != recorder.checked:
            self.check()
            recorder.checked = recorder.count()

    def _find_uncovered(self) -> dict[Path, str]:
        """Return the files that are not covered, with the module that reads each."""
        recorder = record_reads()
        recorder.drain()
        readers = {
            path: reader
            for path, reader in recorder.by_stage.items()
            if not self.loggers.intersection([path, reader])
        }
        loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        readers = {path: path for path in self.lazy & loaded} | readers
        waiting = [*self.modules, *readers]
        seen = set(waiting)
        while waiting:
            reader = waiting.pop()
            for path in recorder.by_import.get(reader, set()) - seen:
                readers[path] = reader
                waiting.append(path)
                seen.add(path)
        stable = {
            _normalize(path): reader
            for path, reader in readers.items()
            if recorder.is_stable(path)
            and (Path(path).name != PACKAGE or has_code(Path(path)))
            and (not path.endswith(os.sep) or self._has_data_of_stage(Path(path), readers))
        }
        return {path: reader for path, reader in stable.items() if not self.declared.covers(path)}

    def _has_data_of_stage(self, folder: Path, readers: Iterable[str]) -> bool:
        """Return whether *folder* has data only, and the stage reads some of it and would read a new file."""
        files = [*map(Path, readers), *(path.absolute() for path in self.declared.deps)]
        return _has_data_only(folder) and any(folder in path.parents for path in files)


@contextmanager
def guard_deps(
    stage: str, params: Params, body: Callable[..., Any], programs: Iterable[Path] = ()
) -> Iterator[DepsGuard]:
    """Record what *body*, which runs *stage* with *params*, reads in the block; yield the check of it.

    *programs* are the user's code besides that in params. Raises `StageError` before the block if deps lack a
    file that the stage will read, and after it if they lack one that it has read.
    """
    declared = _read_declared().get(stage)
    if declared is None:
        declared = Declared("", [], [Path()])  # a stage without an entry has no deps
    used = _find_used_files(stage, params, declared, certain=True)
    used |= {*programs, *find_imports(programs, certain=True)}
    _check_known(stage, declared, used, _read_notes())
    of_loggers = {*find_modules(params.fit)} - {*find_modules(_read_sections(params)["fit"])}
    loggers = (of_loggers | find_imports(of_loggers)) - used
    code = {path for path in used if path.suffix == ".py"}
    lazy = find_imports(code) - used
    guard = DepsGuard(stage, declared, *map(_to_names, (used, lazy, loggers)))
    named = _find_named_files(stage, params, code | lazy)
    with record_reads().recording(body, declared.build_filter(), named):
        yield guard
        guard.check()


def _find_named_files(stage: str, params: Params, code: Iterable[Path]) -> dict[str, str]:
    """Return the files and folders that params of *stage* or its *code* name, each with the file that does.

    Outputs of the pipeline are left out, because other commands read them at any time.
    """
    section_of = _read_sections(params)
    sections = [section_of[name] for name in SECTIONS_BY_STAGE.get(stage, ())]
    named = {path.absolute(): PARAMS for part in sections for path in _find_named_data(part, certain=False)}
    named |= find_named_files(code, Path.cwd())
    outputs = [path.absolute() for entry in _read_declared().values() for path in entry.outs]
    return {
        str(path): str(module.absolute())
        for path, module in named.items()
        if path.name not in PIPELINE_FILES
        and not any(path.is_relative_to(output) or output.is_relative_to(path) for output in outputs)
    }


def check_deps(params: Params, stages: Iterable[str]) -> None:
    """Raise `StageError` if one of *stages* in dvc.yaml lacks a dependency that is known before it runs.

    DVC would find such a stage up to date after an edit of that file.
    """
    declared, notes = _read_declared(), _read_notes()
    for stage in stages:
        used = _find_used_files(stage, params, declared[stage], certain=True)
        _check_known(stage, declared[stage], used, notes)


def _check_known(stage: str, declared: Declared, used: Iterable[Path], notes: Deps) -> None:
    missing = {path for path in {*used, *notes.get(stage, ())} if not declared.covers(path)}
    if missing:
        raise _build_error(stage, missing)


def _build_error(stage: str, missing: Iterable[Path]) -> StageError:
    entries = "".join(f"\n      - {path.as_posix()}" for path in _simplify(missing))
    return StageError(
        f"{stage} reads files that its deps in dvc.yaml lack, so an edit of them would not rerun it, and its "
        "outputs are not recorded. Run `learner check --fix`, which adds these lines to the deps of "
        f"{stage}, and then the same command again:{entries}"
    )


def _read_notes() -> Deps:
    """Return the files that stages have read without a dependency, and would read again, by stage."""
    notes: Deps = {}
    with suppress(OSError, ValueError, AttributeError, TypeError):
        content = read_json_value(runs_root() / MISSING_DEPS)
        for stage, files in content.items():
            notes[stage] = [
                Path(name)  # that exists, and whose reader, a module and its hash, is unchanged
                for name, (reader, digest) in files.items()
                if Path(name).exists() and _hash(Path(reader)) == digest
            ]
    return notes


def _write_notes(stage: str, readers: Mapping[Path, str]) -> None:
    """Note for the next `learner check`, and the next run, what *stage* has read."""
    path = runs_root() / MISSING_DEPS
    notes = read_json(path) or {}
    modules = {name: _normalize(reader) for name, reader in readers.items()}
    notes[stage] = {
        name.as_posix(): [module.as_posix(), _hash(module)] for name, module in sorted(modules.items())
    }
    path.parent.mkdir(exist_ok=True)
    write_text(path, json.dumps(notes, indent=1) + "\n")


def _hash(path: Path) -> str:
    with suppress(OSError):
        return sha256(path)
    return ""
