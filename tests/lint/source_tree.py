"""The files of the repository, each read and parsed once for all rules."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from command_line import LEARNER
from pages import PROJECT_TEMPLATES, Page
from repository import ROOT, list_files
from ruamel.yaml import YAML

TEXT_SUFFIXES = {".md", ".py", ".pyi", ".toml", ".txt", ".yaml", ".yml"}
TEXT_NAMES = {"Makefile", "dvc.lock"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.ClassDef, *FUNCTIONS)
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""The fields of a node that hold statements."""


class Finding(NamedTuple):
    """A place that breaks a rule."""

    path: str
    line: int
    message: str


class Import(NamedTuple):
    """A name that a module imports, such as ``stages.records.read_item``."""

    name: str
    line: int
    is_late: bool
    """True in a function."""


class Definition(NamedTuple):
    """A module, class or function."""

    name: str
    line: int
    docstring: str
    is_function: bool
    is_property: bool


class Module:
    """The facts about a module that rules read, collected in one pass over its statements."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text, path)
        self.imports: list[Import] = []
        self.definitions = [Definition("", 1, ast.get_docstring(self.tree) or "", False, False)]
        self._collect(self.tree, is_late=False)

    @property
    def functions(self) -> Iterator[Definition]:
        """The functions and methods."""
        return (each for each in self.definitions if each.is_function)

    @cached_property
    def names(self) -> set[str]:
        """The names that the module binds at its top level or imports."""
        targets = [getattr(node, "targets", [getattr(node, "target", None)]) for node in self.tree.body]
        return (
            {each.name for each in self.definitions}
            | {each.name.rpartition(".")[2] for each in self.imports}
            | {each.id for each in chain(*targets) if isinstance(each, ast.Name)}
        )

    def _collect(self, parent: ast.AST, *, is_late: bool) -> None:
        for node in (node for block in BLOCKS for node in getattr(parent, block, ())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports += [Import(name, node.lineno, is_late) for name in self._imported(node)]
                continue
            if isinstance(node, DOCUMENTED):
                self.definitions.append(_define(node))
            self._collect(node, is_late=is_late or isinstance(node, FUNCTIONS))

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """Yield the full name of everything that *node* imports."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        package = PurePosixPath(self.path).parent.parts
        base = package[: len(package) + 1 - node.level] if node.level else ()
        yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def _define(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Definition:
    decorators = {getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list}
    is_property = bool(decorators & {"property", "cached_property", "setter"})
    return Definition(
        node.name, node.lineno, ast.get_docstring(node) or "", isinstance(node, FUNCTIONS), is_property
    )


parse_module = cache(Module)
"""Return the `Module` of a path and its text, which is parsed once."""


@dataclass(frozen=True)
class SourceTree:
    """The text of each file by its path, and the command line."""

    files: Mapping[str, str]
    """Files without text are present and empty."""
    command: Any = None
    """The command ``learner``."""

    @classmethod
    def read(cls) -> "SourceTree":
        """Read the files that git tracks or would track."""
        return cls({name: _read(ROOT / name) for name in list_files()}, LEARNER)

    def modules(self, *folders: str, stubs: bool = False) -> Iterator[Module]:
        """Yield the modules below *folders*, and their *stubs*."""
        below, suffixes = tuple(f"{folder}/" for folder in folders), (".py", ".pyi") if stubs else (".py",)
        for name, text in self.files.items():
            if name.startswith(below) and name.endswith(suffixes):
                yield parse_module(name, text)

    @cached_property
    def pages(self) -> list[Page]:
        """The Markdown pages, without those of new projects."""
        return [
            Page(name, text)
            for name, text in self.files.items()
            if name.endswith(".md") and not name.startswith(PROJECT_TEMPLATES)
        ]

    @cached_property
    def paths(self) -> set[str]:
        """The files and the folders."""
        parents = {str(parent) for name in self.files for parent in PurePosixPath(name).parents}
        return set(self.files) | parents

    def packages(self, folder: str) -> set[str]:
        """Return the names of the packages in *folder*."""
        pattern = re.compile(rf"{folder}/(\w+)/__init__\.py")
        return {match[1] for match in map(pattern.fullmatch, self.files) if match}

    @cached_property
    def dvc_yaml(self) -> dict:
        """The content of dvc.yaml."""
        return YAML(typ="safe").load(self.files["dvc.yaml"])

    @cached_property
    def lock(self) -> dict:
        """The content of dvc.lock."""
        return YAML(typ="safe").load(self.files["dvc.lock"])


def line_of(text: str, position: int) -> int:
    """Return the line, from 1, of *position* in *text*."""
    return text.count("\n", 0, position) + 1


def _read(path: Path) -> str:
    is_text = path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES
    return path.read_text(encoding="utf-8") if is_text else ""
