"""`learner params`, and the completion of `-S`."""

import json

import pytest
import yaml
from forked_commands import run_in_pipe

from pipeline.commands.options import complete_param
from pipeline.project.params import Params, list_params, read_params

PARAMS = {
    "defaults": "fit: {}",
    "sections": "fit: {num_epochs: 3, keep: {last: 5}}\nsave_model: {recorder: bin}",
    "own parts": 'build_learner: {model: {kind: "my_lab:Net", width: 64}}\nfit: {hooks: [frozen_norms]}',
    "null": "fit: {early_stopping: null, batcher: pad}\nload_data: {}",
}


@pytest.fixture(params=PARAMS.values(), ids=PARAMS)
def content(request, tmp_path, monkeypatch):
    """Return the content of the params.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(request.param)
    return yaml.safe_load(request.param)


def nest(values):
    """Return a mapping with a section for each dot in the keys of *values*."""
    nested = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        section = nested
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return nested


def test_listed_params_are_those_that_the_stages_receive(content):
    listed = nest({key: value for key, value, _ in list_params()})

    assert Params.model_validate(listed) == read_params()


def test_params_that_are_not_set_have_their_defaults(content):
    is_set = {key: is_set for key, _, is_set in list_params()}

    assert Params.model_validate(content) == Params.model_validate(
        nest({key: value for key, value, is_set in list_params() if is_set})
    )
    assert is_set["fit.batch_size"] is False
    assert is_set["fit.num_epochs"] is ("num_epochs" in content["fit"])


def test_params_are_printed_as_lines_or_json(project):
    lines = project.call("params").ok().splitlines()
    printed = json.loads(project.call("params", "--json").ok())["data"]

    assert "fit.num_epochs: 2" in lines
    assert 'fit.precision: "f32"  # default' in lines
    assert printed["fit.precision"] == {"value": "f32", "is_default": True}
    assert len(printed) == len(lines)


def test_invalid_params_are_an_error(project):
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: two")

    done = project.call("params")

    assert (done.code, done.out) == (2, "")
    assert "fit.num_epochs: must be an integer" in done.err


def test_keys_are_completed_with_their_values(content):
    completed = dict(complete_param("fit.num_"))

    assert list(completed) == ["fit.num_epochs=", "fit.num_workers=", "fit.num_threads="]
    is_set = "num_epochs" in content["fit"]
    assert completed["fit.num_epochs="] == ("3" if is_set else f"{read_params().fit.num_epochs}, the default")


def test_nothing_is_completed_without_valid_params(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert complete_param("fit") == []
    (tmp_path / "params.yaml").write_text("fit: [")
    assert complete_param("fit") == []


def test_shell_completes_the_option(project):
    shell = {"_LEARNER_COMPLETE": "complete_bash", "COMP_WORDS": "learner run -S fit.num", "COMP_CWORD": "3"}

    printed = run_in_pipe(project.folder, "run", **shell).text

    assert printed.split() == ["fit.num_epochs=", "fit.num_workers=", "fit.num_threads="]
