"""Snapshots of the dependencies of a stage, compared with later files and with the loaded code."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo

from pipeline.project import snapshot
from pipeline.project.reads import record_reads
from pipeline.project.snapshot import (
    ABSENT,
    Snapshot,
    check_loaded,
    check_unchanged,
    take_snapshot,
)
from stages.contracts.errors import ParamsError, StageError

FILES = {
    "dvc.yaml": """
vars:
- {folder: inputs, name: ignored by params.yaml}
- other.yaml:folder
stages:
  fit:
    cmd: x
    params:
    - fit
    - ${section}.rate
    - missing.key
    - other.yaml: [a.b]
    - complete.yaml:
    - module.py: [VERSION, Nested.limit]
    - settings.toml: [table.key]
    - absent.yaml: [key]
    deps:
    - ${folder}
    - single.txt: {cache: false}
    - https://example.invalid/data
  bare: {cmd: x}
""",
    "params.yaml": "fit: {epochs: 3}\nsection: build\nbuild: {rate: 0.5}\nname: from params\n",
    "other.yaml": "a: {b: [1, 2]}\nunused: 1\n",
    "complete.yaml": "x: 1\n",
    "module.py": 'VERSION = "7"\nvalue: int = 3\nother = f(1)\nclass Nested:\n    limit = 9\n',
    "settings.toml": "[table]\nkey = true\n",
    "single.txt": "one",
    "inputs/a.txt": "a",
    "inputs/deep/b.txt": "b",
    "inputs/skipped.log": "c",
    "inputs/__pycache__/x.pyc": "d",
    "inputs/.git/config": "e",
    ".dvcignore": "# a comment\n\n*.log\n!kept.log\nprivate/\n/deep/\n",
    "inputs/private/f.txt": "f",
    "inputs/kept.log": "g",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project with one stage that has every kind of dependency; the current folder."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_snapshot_has_the_value_of_each_param(folder):
    assert take_snapshot("fit").params == {
        "params.yaml: fit": {"epochs": 3},
        "params.yaml: build.rate": 0.5,
        "params.yaml: missing.key": ABSENT,
        "other.yaml: a.b": [1, 2],
        "complete.yaml:": {"x": 1},
        "module.py: VERSION": "7",
        "module.py: Nested.limit": 9,
        "settings.toml: table.key": True,
        "absent.yaml: key": ABSENT,
    }


def test_snapshot_has_each_file_that_is_not_ignored(folder):
    files = take_snapshot("fit").files

    assert list(map(str, files)) == ["inputs/a.txt", "inputs/kept.log", "inputs/deep/b.txt", "single.txt"]
    assert {state.size for state in files.values()} == {1, 3}
    assert all(len(state.digest) == 64 for state in files.values())


@pytest.mark.parametrize("stage", ["bare", "unknown"])
def test_stage_without_dependencies_has_an_empty_snapshot(folder, stage):
    assert take_snapshot(stage) == Snapshot(stage, {}, {})


def test_project_without_stages_has_an_empty_snapshot(folder):
    (folder / "dvc.yaml").write_text("vars: []\n")

    assert take_snapshot("fit") == Snapshot("fit", {}, {})


def test_variables_resolve_without_a_params_file(folder):
    (folder / "params.yaml").unlink()
    (folder / "dvc.yaml").write_text(
        "vars: [{folder: inputs}]\nstages: {fit: {deps: ['${ folder }/deep', '${a.b}']}}\n"
    )

    assert list(map(str, take_snapshot("fit").files)) == ["inputs/deep/b.txt"]


@pytest.mark.parametrize("key", ["a.b[1]", "a.b.1"])
def test_element_of_a_list_is_resolved_as_dvc_does(key, folder):
    (folder / "dvc.yaml").write_text(
        f"vars: [{{a: {{b: [inputs, single.txt]}}}}]\nstages: {{fit: {{deps: ['${{{key}}}']}}}}\n"
    )

    assert list(map(str, take_snapshot("fit").files)) == ["single.txt"]


@pytest.mark.parametrize("name", ["absent.yaml", "absent.py", "absent.toml"])
def test_param_of_a_missing_file_is_missing(folder, name):
    (folder / "dvc.yaml").write_text(f"stages: {{fit: {{params: [{name}: [key]]}}}}\n")

    assert take_snapshot("fit") == Snapshot("fit", {f"{name}: key": "missing"}, {})


def test_file_beyond_the_limit_of_hashed_bytes_has_no_digest(folder, monkeypatch):
    monkeypatch.setattr(snapshot, "MAX_HASHED_BYTES", 3)

    digests = [state.digest for state in take_snapshot("fit").files.values()]

    assert [digest is None for digest in digests] == [False, False, False, True]


def reported_changes(edit):
    """Return the lines of the error that reports what *edit* changed."""
    before = take_snapshot("fit")
    edit()
    with pytest.raises(StageError) as caught:
        check_unchanged(before)
    return str(caught.value).splitlines()


def test_data_leaves_the_hashed_bytes_to_the_code_after_it(folder, monkeypatch):
    """The content of code is part of the key of a run."""
    monkeypatch.setattr(snapshot, "MAX_HASHED_BYTES", 40)
    (folder / "dvc.yaml").write_text("stages: {fit: {cmd: x, deps: [inputs, module.py]}}")
    (folder / "inputs/large.bin").write_bytes(bytes(34))
    (folder / "module.py").write_text("x = 1")

    states = take_snapshot("fit").files

    assert states[Path("module.py")].digest
    assert not states[Path("inputs/large.bin")].digest


def test_changed_times_and_ignored_files_are_not_reported(folder):
    before = take_snapshot("fit")
    for name in ("single.txt", "params.yaml"):
        os.utime(name, (1, 1))
    (folder / "inputs/skipped.log").write_text("changed")

    check_unchanged(before)


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("params.yaml", "fit: {epochs: 4}", "params.yaml: fit.epochs was 3 and is 4"),
        ("params.yaml", "section: build", "params.yaml: fit was {'epochs': 3} and is 'missing'"),
        ("complete.yaml", "x: 2", "complete.yaml: x was 1 and is 2"),
        ("complete.yaml", "x: 1\ny: 2", "complete.yaml: y was 'missing' and is 2"),
        ("complete.yaml", "y: 1", "complete.yaml: x was 1 and is 'missing'"),
        ("module.py", "VERSION = '8'", "module.py: VERSION was '7' and is '8'"),
        ("module.py", "VERSION = (", "module.py: VERSION was '7' and is 'missing'"),
        ("single.txt", "two", "single.txt"),
        ("inputs/new.txt", "new", "inputs/new.txt"),
    ],
)
def test_edit_is_reported_with_both_values(folder, name, content, reported):
    assert f"  {reported}" in reported_changes(lambda: (folder / name).write_text(content))


def test_deleted_file_is_reported(folder):
    assert "  inputs/a.txt" in reported_changes((folder / "inputs/a.txt").unlink)


def test_file_without_a_digest_is_compared_by_its_modification_time(folder, monkeypatch):
    monkeypatch.setattr(snapshot, "MAX_HASHED_BYTES", 0)

    assert "  single.txt" in reported_changes(lambda: os.utime("single.txt", (1, 1)))


@pytest.mark.parametrize(("count", "ending"), [(5, "inputs/n4.txt"), (6, "inputs/n4.txt and 1 more")])
def test_at_most_five_changed_files_are_listed(folder, count, ending):
    def edit():
        for number in range(count):
            (folder / f"inputs/n{number}.txt").touch()

    assert reported_changes(edit)[1].endswith(ending)


def test_module_that_is_edited_after_it_was_loaded_is_stale(folder, monkeypatch):
    (folder / "own_package").mkdir()
    for name in ("own_module.py", "own_package/__init__.py", "own_package/part.py"):
        (folder / name).write_text("value = 1\n")
    recorder = record_reads()
    recorder.record_loaded()
    monkeypatch.syspath_prepend(str(folder))
    for name in ("own_module", "own_package", "own_package.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("own_module")
    importlib.import_module("own_package.part")
    paths = [Path("own_module.py"), Path("own_package/__init__.py"), Path("own_package/part.py")]

    assert not any(recorder.is_stale(path, None) for path in paths)
    for path in paths:
        path.write_text("value = 2\n")
    assert all(recorder.is_stale(path, None) for path in paths)
    assert all(recorder.is_stale(path, "another digest") for path in paths)
    assert not recorder.is_stale(Path("single.txt"), "another digest")

    recorder.record_loaded()
    assert not recorder.is_stale(paths[0], None)
    paths[0].write_text("value = 3\n")
    assert recorder.is_stale(paths[0], None)
    for name in ("own_module", "own_package", "own_package.part"):
        sys.modules.pop(name)


def test_stage_whose_loaded_version_differs_from_its_file_is_refused():
    taken = Snapshot("load-data", {"stages/load_data.py: VERSION": "8"}, {})

    check_loaded(taken, "8")
    check_loaded(Snapshot("load-data", {}, {}), "7")
    with pytest.raises(StageError, match=r"stages/load_data.py: VERSION was changed after"):
        check_loaded(taken, "7")


def test_project_without_a_dvcignore_excludes_no_file_of_its_own(folder):
    (folder / ".dvcignore").unlink()

    assert {Path("inputs/skipped.log"), Path("inputs/private/f.txt")} <= take_snapshot("fit").files.keys()


def test_dvcignore_excludes_the_files_that_dvc_excludes(folder):
    (folder / ".dvcignore").write_text("*.log\n!kept.log\n/inputs/deep/\nprivate\n**/x.pyc\n")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], check=True)

    with Repo() as repo:
        files = [Path(each) for each in repo.dvcignore.find(repo.fs, str(folder / "inputs"))]

    expected = {path.relative_to(folder) for path in files}
    assert {path for path in take_snapshot("fit").files if path.parts[0] == "inputs"} == expected


@pytest.mark.parametrize("content", [b"*a*a*a*a*b\n", b"!\n", b"[z-a]\n", b"\xff\n", None])
def test_dvcignore_that_dvc_would_refuse_is_refused(content, folder):
    path = folder / ".dvcignore"
    path.unlink()
    path.write_bytes(content) if content else path.symlink_to("/dev/zero")

    with pytest.raises(StageError, match=r"\.dvcignore"):
        take_snapshot("fit")


def test_comment_of_a_dvcignore_may_have_any_characters(folder):
    (folder / ".dvcignore").write_text("# *** a * b * c * d * **\n*.log\n")

    assert folder / "inputs/skipped.log" not in map(Path.absolute, take_snapshot("fit").files)


def test_values_in_dvc_yaml_are_limited_together(folder):
    (folder / "params.yaml").write_text(f"big: {'x' * 1_000_000}\n")
    (folder / "dvc.yaml").write_text(
        f"stages: {{fit: {{cmd: '{'${big} ' * 50}', deps: ['{'${big} ' * 50}']}}}}"
    )

    with pytest.raises(ParamsError, match=r"1,000,000 for 'big'"):
        take_snapshot("fit")
