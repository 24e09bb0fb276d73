"""The modules that a file of a project imports, found by reading the code."""

from pathlib import Path

import pytest

from pipeline.project.imports import find_imports, list_import_folders

MODULES = (
    *("near.py", "far.py", "other.py", "plain/part.py", "src/below.py"),
    *("lab/__init__.py", "lab/nets.py", "lab/deep/__init__.py", "lab/deep/layers.py"),
    *("stages/models/mine.py", ".venv/lib/hidden.py", "node_modules/packed.py", "json.py"),
)
IMPORTS = {
    "module": ("import near", ["near.py"]),
    "name of a module": ("from near import NAME", ["near.py"]),
    "two imports away": ("import chain", ["chain.py", "far.py", "near.py"]),
    "several names": ("import near, far as f", ["far.py", "near.py"]),
    "module of a package": ("import lab.nets", ["lab/nets.py"]),
    "module as a name": ("from lab import nets", ["lab/nets.py"]),
    "name of a package": ("from lab import Net", []),
    "nested package": (
        "from lab.deep.layers import Norm",
        ["lab/deep/layers.py"],
    ),
    "namespace package": ("import plain.part", ["plain/part.py"]),
    "name of a namespace package": ("from plain import part", ["plain/part.py"]),
    "try": ("try:\n    import near\nexcept ImportError:\n    import far", ["far.py", "near.py"]),
    "class body": ("class A:\n    import near", ["near.py"]),
    "import_module": ("import importlib\nx = importlib.import_module('near')", ["near.py"]),
    "cycle": ("import cycle", ["cycle.py", "main.py"]),
    "type checker only": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import near", []),
    "program only": ("if __name__ == '__main__':\n    import near", []),
    "installed or of Python": ("import torch, json, no_such", []),
    "of this project": ("import stages.models.mine", []),
    "hidden or installed folder": ("import hidden, packed", []),
    "syntax error": ("import near\ndef", []),
}
LAZY = {
    "function": "def f():\n    import near",
    "method": "class A:\n    def f(self):\n        from near import x",
    "condition": "if x:\n    import near",
    "import_module in a function": "def f():\n    return import_module('near')",
    "handler": "try:\n    pass\nexcept ImportError:\n    import near",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the current folder, with the files of `MODULES`."""
    monkeypatch.chdir(tmp_path)
    for name in MODULES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""A package."""' if "__init__" in name else "x = 1")
    (tmp_path / "chain.py").write_text("import near\nfrom far import x")
    (tmp_path / "cycle.py").write_text("import main")
    return tmp_path


def list_imports(project, code, *, certain=False, name="main.py"):
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(code)
    return sorted(path.as_posix() for path in find_imports([Path(name)], certain=certain))


@pytest.mark.parametrize(("code", "modules"), IMPORTS.values(), ids=IMPORTS)
def test_imports_of_the_project_are_found_at_any_depth(code, modules, project):
    assert list_imports(project, code) == modules


@pytest.mark.parametrize("code", LAZY.values(), ids=LAZY)
def test_import_that_may_not_run_is_found_but_is_not_certain(code, project):
    assert list_imports(project, code) == ["near.py"]
    assert list_imports(project, code, certain=True) == []


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("from . import nets", ["lab/nets.py"]),
        ("from .nets import Net", ["lab/nets.py"]),
        ("from .deep import layers", ["lab/deep/layers.py"]),
        ("from .. import near", ["near.py"]),
        ("from .missing import x", []),
    ],
)
def test_relative_imports_begin_at_the_folder_of_the_module(code, modules, project):
    assert list_imports(project, code, name="lab/model.py") == modules


def test_package_of_a_module_is_imported_if_it_has_code(project):
    (project / "lab/__init__.py").write_text("import near")

    assert list_imports(project, "x = 1", name="lab/model.py") == ["lab/__init__.py", "near.py"]
    assert list_imports(project, "from lab import nets") == ["lab/__init__.py", "lab/nets.py", "near.py"]


def test_folder_of_an_editable_installation_is_searched(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project / "src"))
    monkeypatch.syspath_prepend(str(project / ".venv/lib"))

    assert list_import_folders() == [Path(), Path("src")]
    assert list_imports(project, "import below, hidden") == ["src/below.py"]
