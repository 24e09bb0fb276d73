"""Every package that the code imports is named in pyproject.toml and pinned in constraints.txt."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEMPLATES = ROOT / "pipeline/scaffold/templates"
OWN = {"stages", "pipeline", *(path.stem for path in TEMPLATES.glob("*/*.py"))}  # with those of new projects


def imported_packages(*folders):
    """Return the top-level packages that the modules in *folders* import, without the standard library."""
    found = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - OWN - set(sys.stdlib_module_names)


def canonical(name):
    """Return the name of a distribution as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_of(packages):
    installed = packages_distributions()
    return {package: {canonical(name) for name in installed.get(package, [package])} for package in packages}


def names(requirements):
    return {canonical(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def test_imported_packages_are_in_pyproject():
    required = names(PROJECT["dependencies"]).union(*map(names, PROJECT["optional-dependencies"].values()))

    missing = {
        package
        for package, found in distributions_of(imported_packages("stages", "pipeline")).items()
        if not found & required
    }

    assert not missing


def test_imported_packages_are_pinned():
    pinned = names(re.findall(r"^[\w.-]+(?===)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    found = distributions_of(imported_packages("stages", "pipeline"))

    unpinned = {package for package, each in found.items() if not each & pinned}
    assert not unpinned


def test_dependencies_are_imported_or_explained():
    """A requirement that no module imports has a comment on its line that gives the reason."""
    lines = (ROOT / "pyproject.toml").read_text().partition("\n]")[0].splitlines()
    imported = set().union(*distributions_of(imported_packages("stages", "pipeline")).values())

    unexplained = [
        line.strip()
        for line in lines
        if (found := re.match(r' +"([\w.-]+)', line))
        and canonical(found[1]) not in imported
        and "#" not in line
    ]

    assert not unexplained
