"""The private names of DVC and Prefect that the pipeline replaces."""

import json

import pytest

PROGRAM = """
import json
import {module} as patches
from stages.contracts.errors import StageError
from stages.system.patches import find_problems

def replaced():
    return [patch.name for patch in patches.PATCHES if hasattr(patch.find(), "__wrapped__")]

found = {{"after import": replaced(), "problems before": find_problems(patches.PATCHES)}}
import {owner} as owner
original = owner.{name}
{change}
try:
    patches.apply()
except StageError as error:
    found["refused"] = str(error)
owner.{name} = original
found["after a refusal"] = replaced()
patches.apply()
found |= {{"after apply": replaced(), "problems after": find_problems(patches.PATCHES)}}
patches.apply()
found["after a second call"] = replaced()
print(json.dumps(found))
"""
DVC = {
    "module": "pipeline.engine.dvc_patches",
    "owner": "dvc.stage.run",
    "name": "cmd_run",
    "change": "del owner.cmd_run",
    "words": ["dvc 3.", "dvc.stage.run.cmd_run does not exist", "Install dvc 3.67.1"],
}
PREFECT = {
    "module": "pipeline.flows.prefect_patches",
    "owner": "prefect.flow_engine",
    "name": "maintain_concurrency_lease",
    "change": "owner.maintain_concurrency_lease = lambda lease: None",
    "words": ["prefect 3.", "has the signature (lease), not (lease_id,", "Install prefect >=3.8.8,<3.10"],
}


@pytest.fixture(scope="module", params=[DVC, PREFECT], ids=["dvc", "prefect"])
def found(request, open_project, tmp_path_factory):
    """Return the state of the patches of one package at each step of a fork, and the words of its error.

    The fork first applies the patches with a changed name. A patch stays for the life of a process.
    """
    folder = tmp_path_factory.mktemp("patches")
    (folder / "apply_patches.py").write_text(PROGRAM.format(**request.param))
    done = open_project(folder).fork("apply_patches")
    assert done.code == 0, done.err
    return json.loads(done.out) | {"words": request.param["words"]}


def test_installed_package_has_every_replaced_name_before_and_after_the_replacement(found):
    assert (found["problems before"], found["problems after"]) == ([], [])


def test_import_replaces_nothing_and_apply_replaces_once(found):
    assert "dvc.stage.run:cmd_run" not in found["after import"]
    assert len(found["after apply"]) >= 3
    assert found["after a second call"] == found["after apply"]


def test_changed_name_is_an_error_that_names_the_supported_versions(found):
    assert [word for word in found["words"] if word not in found["refused"]] == []
    assert found["after a refusal"] == found["after import"]
