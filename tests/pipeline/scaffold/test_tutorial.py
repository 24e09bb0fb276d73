"""A reader who follows the five pages of the tutorial gets the results that they name."""

import json
import re
import shlex

import pytest
from pages import pages
from ruamel.yaml import YAML

FOLDER = "pipeline/scaffold/tutorial/"
PAGES = [page for page in pages() if page.name.startswith(FOLDER)]


def follow(page, project):
    """Write the files of a page, replace its params, and run its commands; return what they print."""
    printed = []
    for language, content in re.findall(r"^```(\w+)\n(.*?)^```", page.text, re.DOTALL | re.MULTILINE):
        name = content.partition("\n")[0].removeprefix("# ")
        if language == "python":
            (project.folder / name).write_text(content)
        elif language == "yaml":
            replace_sections(project.folder / name, content)
        elif language == "console":
            printed += [run(command, project) for command in page_commands(content)]
    return printed


def page_commands(block):
    return [line.removeprefix("$ ") for line in block.splitlines()]


def replace_sections(path, content):
    yaml = YAML()
    yaml.preserve_quotes = True  # a flow mapping needs those of "model:Net"
    yaml.dump(yaml.load(path.read_text()) | yaml.load(content), path)


def run(command, project):
    program, *arguments = shlex.split(command)
    if program == "cd":
        return ""
    if arguments[:1] == ["init"]:
        arguments[1] = "."
    if program == "learner":
        return project.call(*arguments).ok()
    if program == "dvc":
        return project.dvc(*arguments).ok()
    return project.ok(*([program, *arguments]))


def test_pages_are_numbered_and_each_leads_to_the_next():
    names = [page.name.removeprefix(FOLDER) for page in PAGES]

    assert [name[0] for name in names] == list("12345")
    for page, following in zip(PAGES[:-1], names[1:], strict=True):
        assert re.search(rf"^Next: \[.*\]\({following}\)$", page.text, re.MULTILINE)


@pytest.mark.long  # the lint checks commands, imports and links, and test_init.py runs a project
def test_commands_and_programs_of_the_tutorial_run_in_their_order(open_project, tmp_path):
    project = open_project(tmp_path / "wine")
    project.folder.mkdir()

    printed = {page.name.removeprefix(FOLDER): follow(page, project) for page in PAGES}

    assert "Running stage" not in printed["1-project.md"][-1]
    assert "test.Accuracy" in printed["2-data.md"][-3]
    assert "model.py changed" in printed["3-model.md"][1]
    assert printed["4-compare.md"][0].splitlines()[1].split()[0] in {"HEAD", "deeper", "wide"}
    predictions = (project.folder / "predictions.csv").read_text().splitlines()
    assert len(predictions) == 1 + 178
    assert printed["5-predict.md"][1].startswith("[")
    assert {path.name for path in (project.folder / "artifacts/exports").iterdir()} >= {"model.safetensors"}
    metrics = json.loads((project.folder / "artifacts/test/split/metrics.json").read_text())
    assert metrics["test"]["Accuracy"] > 90
