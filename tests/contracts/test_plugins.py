"""The lookup of parts by name or import path."""

import pytest

from stages.contracts import plugins
from stages.contracts.errors import PluginError

BUILT_IN = {"path": "pathlib:Path"}


def test_short_name_is_built_in_and_path_is_imported():
    assert plugins.find("thing", "path", BUILT_IN) is plugins.find("thing", "pathlib:Path", {})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pth", ["no thing is named 'pth'", "Did you mean 'path'?", "your own"]),
        ("no_such_module:Thing", ["cannot be imported", "No module named 'no_such_module'"]),
        ("pathlib:Pth", ["'pathlib' imports, but has no 'Pth'", "Did you mean 'Path'?"]),
    ],
)
def test_unknown_name_is_rejected_with_the_reason(name, words):
    with pytest.raises(PluginError) as caught:
        plugins.find("thing", name, BUILT_IN)

    assert all(word in str(caught.value) for word in words), caught.value


def test_module_that_fails_on_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PluginError, match="'broken_plugin:Net' cannot be imported: ZeroDivisionError"):
        plugins.find("model", "broken_plugin:Net", {})


def test_name_registered_by_an_installed_package_is_found(tmp_path, monkeypatch):
    info = tmp_path / "their_lab-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stages.models]\nwide = their_lab:Wide\n")
    (tmp_path / "their_lab.py").write_text("class Wide: pass")
    monkeypatch.syspath_prepend(tmp_path)

    assert plugins.find("model", "wide", {}).__name__ == "Wide"


def test_invalid_arguments_are_listed_with_the_valid_ones():
    def maker(width, *, depth=1):
        return width * depth

    assert plugins.build("model", "wide", maker, {"width": 2, "depth": 3}) == 6
    with pytest.raises(
        PluginError, match=r"(?s)unknown argument 'widht'. Did you mean 'width'\?.*accepted: width, depth=1"
    ):
        plugins.build("model", "wide", maker, {"width": 2, "widht": 3})
