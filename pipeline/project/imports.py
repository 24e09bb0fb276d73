"""The modules that a file imports and the files that it names, found without running its code.

A module of a project is a file below its folder that is neither installed nor part of ``stages`` or
``pipeline``: these have a VERSION, or their content is a dependency (see `pipeline.project.versions`).
"""

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TypeVar

Part = TypeVar("Part")
OUR_PACKAGES = ("stages", "pipeline")
INSTALLED = ("site-packages", "dist-packages", "node_modules")
METADATA = (".egg-info", ".dist-info")
"""Endings of the names of folders that describe an installed package."""
PACKAGE = "__init__.py"
"""The module of a package. One without a statement changes nothing, and need not be in deps."""
FALSE_IN_IMPORTS = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
"""Conditions that are false in a module that is imported."""
IMPORT_FUNCTIONS = ("import_module", "__import__")
"""Functions whose first argument is the name of a module."""
MAX_TEXT = 255
"""Characters of a text that may be the name of a file."""


@dataclass(frozen=True)
class Import:
    """An import statement, or a call of `importlib.import_module` with a literal name."""

    module: str
    """The dotted name; empty for ``from . import name``."""
    names: tuple[str, ...] = ()
    """The names that a ``from`` imports, each of which may be a module."""
    level: int = 0
    """The number of dots of a relative import."""
    is_certain: bool = True
    """Whether it runs whenever its module is imported: it is neither in a function nor under a condition."""


def find_imports(files: Iterable[Path], *, certain: bool = False) -> set[Path]:
    """Return the modules of the project that *files* import, directly or through each other.

    The paths are relative to the current folder, that of the project. With *certain*, imports in functions
    and under conditions are left out. A file that cannot be read or parsed imports nothing.
    """
    folders = list_import_folders()
    waiting, modules = list(files), set[Path]()
    while waiting:
        path = waiting.pop()
        imported = {
            module
            for entry in read_source(path, _parse_imports)
            if entry.is_certain or not certain
            for module in _resolve(entry, path, folders)
        }
        imported |= {folder / PACKAGE for folder in path.parents if has_code(folder / PACKAGE)}
        waiting += imported - modules
        modules |= imported
    return modules


def list_import_folders() -> list[Path]:
    """Return the folders of the project in which Python looks for modules; that of the project is first."""
    base = Path.cwd()
    below = [Path(entry).relative_to(base) for entry in sys.path if Path(entry).is_relative_to(base)]
    return list(dict.fromkeys([Path(), *(folder for folder in below if is_of_project(folder))]))


def is_of_project(path: Path) -> bool:
    """Return whether *path*, relative to a project, is neither hidden nor installed nor in our packages."""
    parts = path.parts
    return not (
        parts[:1] == ("..",)
        or parts[:1] in [(name,) for name in OUR_PACKAGES]
        or any(part in INSTALLED or part.startswith(".") or part.endswith(METADATA) for part in parts)
    )


def find_module(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the file or the package of the module *name* in one of *folders*, if it is there."""
    for folder in folders:
        base = folder.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base):
            if path.exists():
                return path
    return None


def list_methods(path: Path, name: str) -> set[str]:
    """Return the names of the methods of the class *name* in the module *path*; none if it has none."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    classes = [entry for entry in statements if isinstance(entry, ast.ClassDef) and entry.name == name]
    return {method.name for entry in classes for method in entry.body if isinstance(method, ast.FunctionDef)}


def has_code(path: Path) -> bool:
    """Return whether the module *path* exists and has a statement besides its docstring."""
    try:
        return any(
            not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            for statement in ast.parse(path.read_bytes()).body
        )
    except (SyntaxError, ValueError, RecursionError):
        return True
    except OSError:
        return False


def read_source(path: Path, parse: Callable[[bytes], list[Part]]) -> list[Part]:
    """Return what *parse* returns for the module *path*; nothing if it cannot be read or parsed."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        return parse(path.read_bytes())
    return []


@lru_cache(maxsize=256)
def _parse_imports(source: bytes) -> list[Import]:
    """Return the imports in *source*, except for those that only a type checker executes."""
    return list(_read_statements(ast.parse(source).body, is_certain=True))


def _read_statements(body: list[ast.stmt], *, is_certain: bool) -> Iterator[Import]:
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in FALSE_IN_IMPORTS:
            yield from _read_statements(statement.orelse, is_certain=is_certain)
        elif isinstance(statement, ast.Try | ast.With | ast.ClassDef):
            yield from _read_statements(statement.body, is_certain=is_certain)
            others = [getattr(statement, name, []) for name in ("orelse", "finalbody")]
            handlers = [handler.body for handler in getattr(statement, "handlers", [])]
            for part in (*others, *handlers):
                yield from _read_statements(part, is_certain=False)
        else:
            is_direct = isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr | ast.Assign)
            yield from _read_nodes(statement, is_certain=is_certain and is_direct)


def _read_nodes(statement: ast.stmt, *, is_certain: bool) -> Iterator[Import]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, is_certain=is_certain) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield Import(node.module or "", names, node.level, is_certain)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function, name = ast.unparse(node.func).rpartition(".")[2], node.args[0].value
            if function in IMPORT_FUNCTIONS and isinstance(name, str) and not name.startswith("."):
                yield Import(name, is_certain=is_certain)


def _resolve(entry: Import, importer: Path, folders: list[Path]) -> Iterator[Path]:
    """Yield the files of the project that *entry* in the file *importer* loads: packages and modules."""
    if entry.level:
        folders = [Path(*importer.parts[: len(importer.parts) - entry.level])]
    elif entry.module.partition(".")[0] in (*OUR_PACKAGES, *sys.stdlib_module_names):
        return
    names = entry.module.split(".") if entry.module else []
    for folder in folders:
        files, place = _follow(names, folder)
        yield from files
        if place is not None:
            for name in entry.names:
                yield from _follow([name], place)[0]
        if files or place:
            return


def _follow(names: list[str], folder: Path) -> tuple[list[Path], Path | None]:
    """Return the files that *names*, the parts of a dotted name, load from *folder*, and the last folder.

    The folder is None if a name is that of a module. A folder without ``__init__.py`` is a namespace package.
    """
    files = []
    for name in names:
        package, module = folder / name, folder / f"{name}.py"
        if has_code(package / PACKAGE):
            files.append(package / PACKAGE)
        elif module.is_file():
            return [*files, module], None
        elif not package.is_dir():
            return files, None
        folder = package
    return files, folder


def find_named_files(modules: Iterable[Path], root: Path) -> dict[Path, Path]:
    """Return the files that *modules* of the project *root* name, and folders of it, each with its module.

    A name is a text or, for a file, a word of one with a dot or a slash. It is relative to *root*, to the
    folder of the module, or to a folder that another text names. A text without a slash names no folder, as
    in ``batch["data"]``: other programs open files below it at any time.
    """
    named: dict[Path, Path] = {}
    for module in modules:
        texts = read_source(root / module, _parse_texts)
        bases = [root, (root / module).parent]
        found = _find(bases, texts)
        folders = {path: text for path, text in found.items() if path.is_dir() and root in path.parents}
        words = [word for text in texts for word in text.split() if "." in word or os.sep in word]
        found |= _find(bases, words) | _find(folders, [*texts, *words])
        named |= {path: module for path in found if path.is_file()}
        named |= {path: module for path, text in folders.items() if os.sep in text.rstrip(os.sep)}
    return named


def _find(bases: Iterable[Path], texts: Iterable[str]) -> dict[Path, str]:
    """Return the text that names each path below one of *bases* that exists."""
    found = {}
    for base, text in product(bases, dict.fromkeys(texts)):
        path = os.path.normpath(os.path.join(base, text))  # noqa: PTH118  any text
        if os.path.exists(path):  # noqa: PTH110  ten times as fast
            found[Path(path)] = text
    return found


@lru_cache(maxsize=256)
def _parse_texts(source: bytes) -> list[str]:
    """Return the texts in *source* that may be the name of a file; those of ``f"{folder}/name"`` too.

    Docstrings, and other texts that are statements, are left out.
    """
    nodes = list(ast.walk(ast.parse(source)))
    unused = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    values = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in unused]
    texts = [value for value in values if isinstance(value, str) and 0 < len(value) <= MAX_TEXT]
    texts += [text.lstrip("/") for text in texts if text.startswith("/")]
    return [text for text in dict.fromkeys(texts) if text and "\0" not in text]
