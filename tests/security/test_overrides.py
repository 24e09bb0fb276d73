"""Overrides that Prefect's API sends name no code and no file that the committed params lack."""

import subprocess
from pathlib import Path

import pytest

from pipeline.project.params import Params
from pipeline.project.params_edit import _FILE_KEY, ALLOW_CODE, check_overrides
from stages.contracts.errors import ParamsError

ROOT = Path(__file__).parents[2]
FOREIGN = {
    "model": "build_learner.model.kind='os:system'",
    "optimizer": "build_learner.optimizer.kind='torch.optim:SGD'",
    "metric in a list": "fit.metrics=[loss,'my_lab.metrics:Steal']",
    "logger with an address": "+fit.loggers=[{kind:mlflow,tracking:'http://evil.example'}]",
    "argument of a part": "fit.metrics=[loss,{kind:auroc,weights:'/etc/passwd'}]",
    "argument in a mapping": "fit.metrics=[loss,{kind:auroc,options:{a:{b:['../x']}}}]",
    "loader": "load_data.source={kind:idx,path:mnist}",
    "loader of a committed file": "load_data.source={kind:npz,path:committed.npz}",
    "file without a folder": "load_data.source={kind:npz,path:private.npz}",
    "home": "fit.metrics=[loss,{kind:auroc,weights:'~root'}]",
    "environment": "fit.batch_size=${oc.env:HOME}",
}
HARMLESS = {
    "number": "fit.num_epochs=3",
    "device": "fit.device='cuda:1'",
    "devices": "fit.device=[cpu,cpu]",
    "built-in model": "build_learner.model.kind=mlp",
    "name of a metric": "fit.metrics=[loss,recall]",
    "committed code": "build_learner.model.kind='committed.nets:Net'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a project whose commit names code and a file, and whose workspace names others."""
    made = tmp_path_factory.mktemp("project")
    text = (ROOT / "params.yaml").read_text()
    own = "\n    - loss\n    - accuracy\n    - kind: committed.nets:Net\n      file: committed.npz\n"
    committed = text.replace(" [loss, accuracy]\n", own)
    assert committed != text
    (made / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    (made / "params.yaml").write_text(committed)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
        subprocess.run(command, cwd=made, check=True)
    (made / "params.yaml").write_text(committed.replace("kind: digits", "kind: 'edited.data:load'"))
    return made


@pytest.fixture(autouse=True)
def _in_the_project(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv(ALLOW_CODE, raising=False)


@pytest.mark.parametrize("override", FOREIGN.values(), ids=FOREIGN)
def test_foreign_code_or_file_is_refused(override):
    with pytest.raises(ParamsError, match="--allow-code"):
        check_overrides([override])


@pytest.mark.parametrize("override", HARMLESS.values(), ids=HARMLESS)
def test_harmless_override_is_accepted(override):
    check_overrides([override])


def test_code_that_only_the_workspace_names_is_not_an_override():
    check_overrides(["fit.num_epochs=3"])

    with pytest.raises(ParamsError, match=r"fit\.batcher\.kind"):
        check_overrides(["+fit.batcher.kind='edited.data:load'"])


def test_allowed_code_is_not_refused(monkeypatch):
    monkeypatch.setenv(ALLOW_CODE, "1")

    check_overrides(["build_learner.model.kind='os:system'", "load_data.source={kind:npz,path:/private.npz}"])


def list_keys(schema):
    """Yield the name of every key in the JSON schema *schema*."""
    for entries in (schema, *schema["$defs"].values()):
        yield from entries.get("properties", {})


def test_every_path_of_the_schema_is_a_file_key():
    keys = set(list_keys(Params.model_json_schema()))
    files = {each for each in keys if "path" in each} | {"inputs", "targets", "labels", "tokenizer"}

    assert files <= keys
    assert {each for each in files if not _FILE_KEY.search(each)} == set()
