"""The reasons for which a stage is out of date name each param, version and file."""

import hashlib
from pathlib import Path

import pytest

from pipeline.engine.reproduce import MAX_REASONS, describe_reasons, list_reasons
from pipeline.project.snapshot import list_folder, store_folder_lists, take_snapshot

PARAMS = {"params.yaml": {"fit": {"epochs": 2, "rate": 0.1}}, "stages/fit.py": {"VERSION": "7"}}
BEFORE = {"cmd": "x", "deps": [{"path": "a.py", "md5": "1"}, {"path": "b", "md5": "2"}], "params": PARAMS}
CHANGES = {
    "param": (
        {"params": {**PARAMS, "params.yaml": {"fit": {"epochs": 3, "rate": 0.1}}}},
        ["fit.epochs: 2 → 3"],
    ),
    "version": (
        {"params": {**PARAMS, "stages/fit.py": {"VERSION": "8"}}},
        ['stages/fit.py: VERSION: "7" → "8"'],
    ),
    "file": ({"deps": [{"path": "a.py", "md5": "9"}, {"path": "b", "md5": "2"}]}, ["a.py changed"]),
    "new dependency": ({"deps": [*BEFORE["deps"], {"path": "c", "md5": "3"}]}, ["c is a new dependency"]),
    "removed dependency": ({"deps": BEFORE["deps"][:1]}, ["b was a dependency"]),
    "command": ({"cmd": "y"}, ["the command changed"]),
    "order of keys": ({"params": dict(reversed(PARAMS.items()))}, []),
    "output": ({"outs": [{"path": "o", "md5": "1"}]}, []),
}


@pytest.mark.parametrize(("change", "reasons"), CHANGES.values(), ids=CHANGES)
def test_reasons_are_what_differs_from_the_entry_in_dvc_lock(change, reasons):
    assert list_reasons(BEFORE, BEFORE | change) == reasons


def test_reasons_in_one_line_are_limited():
    assert describe_reasons(["a", "b"]) == "a; b"
    assert describe_reasons(["a"] * (MAX_REASONS + 2)).endswith("; a; and 2 more")


def test_reason_names_the_files_of_a_folder_that_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("same", "edited", "removed"):
        Path("lab", name).parent.mkdir(exist_ok=True)
        Path("lab", f"{name}.py").write_text(name)
    Path("dvc.yaml").write_text("stages: {fit: {cmd: x, deps: [lab]}}")
    oid = f"{hashlib.md5(list_folder(Path('lab')).encode(), usedforsecurity=False).hexdigest()}.dir"
    store_folder_lists(take_snapshot("fit"))

    Path("lab/edited.py").write_text("again")
    Path("lab/removed.py").unlink()
    Path("lab/added.py").write_text("")
    before, after = ({"deps": [{"path": "lab", "md5": digest}]} for digest in (oid, "other.dir"))

    assert list_reasons(before, after) == ["lab/added.py, lab/edited.py, lab/removed.py changed"]


def test_list_of_a_folder_is_the_one_whose_hash_dvc_records(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    text = list_folder(Path("stages/models"))

    assert (
        f"{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}.dir" in Path("dvc.lock").read_text()
    )


def test_status_prints_why_a_stage_is_out_of_date(finished):
    assert finished.call("status", "--why", "fit").out == "fit is up to date\n"

    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    finished.edit("stages/models/cnn.py", '"""', '""" ')
    (finished.folder / "artifacts/metrics.json").unlink()

    why = finished.call("status", "--why", "fit").out.splitlines()
    assert why == [
        "fit.batch_size: 32 → 64",
        "stages/models/cnn.py changed",
        "artifacts/metrics.json deleted",
    ]
    unknown = finished.call("status", "--why", "fitt")
    assert (unknown.code, unknown.err) == (2, "error: dvc.yaml has no stage 'fitt'. Did you mean 'fit'?\n")
