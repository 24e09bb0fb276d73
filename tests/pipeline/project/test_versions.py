"""versions.yaml has the version of each stage, and hashes of the shipped code that a project depends on."""

from pathlib import Path

from envelopes import call

import stages
from pipeline.project.versions import CODE, VERSIONS, read_installed_versions
from pipeline.scaffold.new_project import Installation, project_files


def test_each_hash_is_that_of_modules():
    [root] = map(Path, stages.__path__)

    assert {name: any(root.glob(pattern)) for name, pattern in CODE.items()} == dict.fromkeys(CODE, True)


def test_versions_of_the_stages_are_data_with_those_that_were_replaced(open_project, tmp_path):
    project = open_project(tmp_path)
    for name in ("dvc.yaml", "versions.yaml"):
        (tmp_path / name).write_text(project_files(Installation("learner-pipeline==1"))[name])
    project.edit("versions.yaml", f'fit: "{VERSIONS["fit"]}"\n', "")
    project.edit("versions.yaml", f'save_model: "{VERSIONS["save-model"]}"', 'save_model: "1"')

    data = call(project, "versions")["data"]

    assert data == {"versions": read_installed_versions(), "replaced": {"fit": None, "save_model": "1"}}
    assert project.call("versions").out == "versions.yaml is up to date\n"
