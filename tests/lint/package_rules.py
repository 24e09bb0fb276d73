"""The rules of dependencies: each imported package is in pyproject.toml and pinned in constraints.txt."""

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import PurePosixPath

from source_tree import Finding, SourceTree, line_of

PYPROJECT, CONSTRAINTS = "pyproject.toml", "constraints.txt"
TEMPLATES = "pipeline/scaffold/templates/"


@cache
def provided_packages(name: str) -> frozenset[str]:
    """Return the packages of the installed distribution *name*; *name* itself if it is not installed."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return frozenset({name.replace("-", "_")})
    declared = (installed.read_text("top_level.txt") or "").split()
    recorded = re.findall(
        r"^(\w+)(?:/|\.(?:py|abi3|cpython)\b)", installed.read_text("RECORD") or "", re.MULTILINE
    )
    return frozenset(declared or recorded)


def imported_packages_are_in_pyproject(tree: SourceTree) -> Iterator[Finding]:
    """A package that a module imports belongs to a dependency, also to one of an extra."""
    providers = _providers(tree)
    for package, (path, line) in _imported_packages(tree).items():
        if package not in providers:
            yield Finding(path, line, f"no dependency in {PYPROJECT} has the package {package}")


def imported_packages_are_pinned(tree: SourceTree) -> Iterator[Finding]:
    """A dependency that a module imports has a version in constraints.txt."""
    pinned = _names(re.findall(r"^[\w.-]+(?===)", tree.files[CONSTRAINTS], re.MULTILINE))
    providers = _providers(tree)
    for package, (path, line) in _imported_packages(tree).items():
        for name in providers.get(package, set()) - pinned:
            yield Finding(path, line, f"{name} has no version in {CONSTRAINTS}")


def dependencies_are_imported_or_explained(tree: SourceTree) -> Iterator[Finding]:
    """A dependency that no module imports has a comment on its line that gives the reason."""
    imported = _imported_packages(tree).keys()
    text = tree.files[PYPROJECT].partition("\n]")[0]
    for match in re.finditer(r'^ +"([\w.-]+)(.*)$', text, re.MULTILINE):
        if not provided_packages(match[1]) & imported and "#" not in match[2]:
            yield Finding(
                PYPROJECT, line_of(text, match.start()), f"no module imports {match[1]}: give the reason"
            )


def _providers(tree: SourceTree) -> Mapping[str, set[str]]:
    """Return package to the dependencies in pyproject.toml that have it."""
    project = tomllib.loads(tree.files[PYPROJECT])["project"]
    extras = project.get("optional-dependencies", {}).values()
    found = defaultdict(set)
    for name in _names(project["dependencies"]).union(*map(_names, extras)):
        for package in provided_packages(name):
            found[package].add(name)
    return found


def _imported_packages(tree: SourceTree) -> Mapping[str, tuple[str, int]]:
    """Return package to a place that imports it, without the standard library and the project's modules."""
    templates = {PurePosixPath(name).stem for name in tree.files if name.startswith(TEMPLATES)}
    own = {"stages", "pipeline", *templates, *sys.stdlib_module_names}
    found = {
        each.name.partition(".")[0]: (module.path, each.line)
        for module in tree.modules("stages", "pipeline")
        for each in module.imports
    }
    return {package: place for package, place in found.items() if package not in own}


def _canonical(name: str) -> str:
    """Return the name of a distribution as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: Iterable[str]) -> set[str]:
    return {_canonical(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


RULES = (
    imported_packages_are_in_pyproject,
    imported_packages_are_pinned,
    dependencies_are_imported_or_explained,
)
