"""`learner init` creates a project for a user's own model and data."""

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.project.versions import find_this_package
from pipeline.scaffold.new_project import PLOT, Installation, find_installation, project_files
from stages import fit
from stages.contracts.errors import StageError

ROOT = Path(__file__).parents[3]
FILES = {
    *(".dvc", ".dvcignore", ".git", ".gitignore", "Makefile", "README.md", "dvc.yaml", "model.py"),
    *("params.yaml", "prefect.yaml", "requirements.txt", "source.py", "test_project.py", "versions.yaml"),
}
MODEL_STAGES = ["build-learner", "fit", "save-model"]
ALL_STAGES = ["create-artifact-dir", "load-data", *MODEL_STAGES]
OFFLINE_PIP = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}


def parse_started_stages(text):
    """Return the stages whose command DVC started, from its output *text*."""
    return re.findall(r"Running stage '(.*)'", text)


@pytest.fixture
def package(project, tmp_path):
    """Return a copy of this repository, to install or to run `learner init` from."""
    return project.copied_to(tmp_path / "package")


@pytest.fixture
def new_project(package, tmp_path):
    """Return a project that `learner init` created from the copy; its params have two epochs."""
    printed = package.learner("init", str(tmp_path / "own"))
    assert printed.code == 0, printed.text
    made = type(package)(tmp_path / "own", package.environment["PREFECT_HOME"])
    made.environment["PYTHONPATH"] = str(package.folder)
    made.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    return made


@pytest.mark.long
def test_edited_model_and_new_version_rerun_the_stages_that_depend_on_them(new_project, package):
    assert parse_started_stages(new_project.ok("dvc", "repro")) == ALL_STAGES
    made = new_project.files("artifacts/model.mpk.gz")

    package.edit("stages/learner/loop.py", '"""The ', '"""The commented ')
    assert parse_started_stages(new_project.ok("dvc", "repro")) == []

    new_project.edit("model.py", "nn.ReLU()", "nn.Tanh()")
    assert sorted(parse_started_stages(new_project.ok("dvc", "repro"))) == MODEL_STAGES
    assert new_project.files("artifacts/model.mpk.gz") != made

    package.edit("stages/fit.py", f'VERSION = "{fit.VERSION}"', 'VERSION = "new"')
    package.edit(
        "stages/models/steps.py",
        "F.cross_entropy(logits, targets, weights",
        "F.nll_loss(logits, targets, weights",
    )
    old = new_project.learner("check")
    assert old.code == 1
    assert f"versions.yaml: fit is {fit.VERSION}, but new is installed. Run `learner versions`" in old.out
    refused = new_project.learner("stage", "fit")
    assert (refused.code, "Traceback" in refused.err) == (1, False)
    assert f"versions.yaml: fit is {fit.VERSION}, but new is installed" in refused.err
    printed = new_project.learner("versions").out
    assert printed.startswith(
        f"versions.yaml: fit is {fit.VERSION}, but new is installed\nversions.yaml: models is "
    )
    assert new_project.learner("versions").out == "versions.yaml is up to date\n"
    changed = {"build-learner", "fit", "save-model"}
    assert set(json.loads(new_project.ok("dvc", "status", "--json"))) == changed


@pytest.fixture
def installed_project(package, tmp_path):
    """Return a project that `learner init` created, and the output of the command.

    The package is installed in an environment that is not active. A user's pip would download its
    dependencies; here they are those of the environment of the tests.
    """
    package.ok(str(_write_python_with_packages(tmp_path)), "-m", "venv", str(tmp_path / "venv"))
    package.ok(
        str(tmp_path / "venv/bin/python"), "-m", "pip", "install", "-q", str(package.folder), **OFFLINE_PIP
    )
    (tmp_path / "own").mkdir()
    new_project = type(package)(tmp_path / "own", package.environment["PREFECT_HOME"])
    return new_project, new_project.ok(str(tmp_path / "venv/bin/learner"), "init", ".")


@pytest.mark.long  # the tests of `init` in this file, and test_templates.py, without an installation
def test_installed_package_creates_a_project_whose_make_uses_its_environment(installed_project, tmp_path):
    """The stages run in forks; then `make repro`, with the programs of that environment, finds no change."""
    new_project, printed = installed_project

    assert f"environment: {tmp_path / 'venv'}, from local.mk" in printed
    assert {path.name for path in new_project.folder.iterdir()} == FILES | {"local.mk"}
    new_project.edit("params.yaml", "num_epochs: 20", "num_epochs: 3")
    assert parse_started_stages(new_project.dvc("repro").ok()) == ALL_STAGES
    metrics = json.loads((new_project.folder / "artifacts/metrics.json").read_text())
    assert metrics["valid"]["Accuracy"] > 60
    assert (new_project.folder / "artifacts/model.mpk.gz").exists()
    new_project.ok("git", "add", "-A")
    for command in ("show HEAD", "diff --cached"):
        assert str(tmp_path) not in new_project.ok("git", *command.split())
    again = new_project.ok("make", "repro")
    assert "versions.yaml is up to date" in again
    assert parse_started_stages(again) == []
    assert not (new_project.folder / ".venv").exists()
    [packages] = (tmp_path / "venv").glob("lib/python3*/site-packages")
    assert find_template_files(packages) == find_template_files(ROOT)


@pytest.mark.long
def test_new_project_trains_with_make_repro_and_passes_make_test(installed_project):
    new_project, _ = installed_project
    new_project.edit("params.yaml", "num_epochs: 20", "num_epochs: 3")

    assert parse_started_stages(new_project.ok("make", "repro")) == ALL_STAGES
    assert parse_started_stages(new_project.ok("make", "repro")) == []
    assert "2 passed" in new_project.ok("make", "test")
    assert not (new_project.folder / ".venv").exists()


def find_template_files(folder):
    """Return the files of all templates in the packages below *folder*, except for compiled modules."""
    paths = folder.glob("pipeline/scaffold/template*/**/*")
    return {path.relative_to(folder) for path in paths if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.long
def test_printed_commands_activate_the_environment_train_and_compare(installed_project):
    new_project, printed = installed_project
    commands = re.findall(r"^(?:next|then): (.*)$", printed, re.MULTILINE)
    assert len(commands) == 2

    text = new_project.ok("bash", "-c", "\n".join(["set -e", *commands]))

    name = re.search(r"Ran experiment\(s\): (\S+)", text)[1]
    assert re.search(rf"^workspace .*\n{name} .* yes$", text, re.MULTILINE)


@pytest.mark.long
def test_make_reports_a_missing_environment_and_installs_one_in_a_clone(installed_project, package, tmp_path):
    new_project, _ = installed_project
    python = tmp_path / "python3"
    (tmp_path / "venv").rename(tmp_path / "moved")
    assert f"learner is not installed in {tmp_path / 'venv/bin'}" in new_project.run("make", "test").text

    new_project.ok("git", "clone", "-q", ".", str(tmp_path / "clone"))
    clone = type(new_project)(tmp_path / "clone", new_project.environment["PREFECT_HOME"])
    learner_option = f"LEARNER=--editable {package.folder}"

    assert "2 passed" in clone.ok("make", "test", learner_option, f"PYTHON={python}", **OFFLINE_PIP)
    [path] = (clone.folder / ".venv").glob("lib/python3*/site-packages/__editable__*.pth")
    assert path.read_text().strip() == str(package.folder)  # not an import hook, so type checkers follow it


@pytest.mark.long
def test_experiment_and_compare_work_right_after_init(package, tmp_path):
    printed = package.learner("init", str(tmp_path / "own")).out
    [command] = re.findall(r"^next: (.*)$", printed, re.MULTILINE)

    text = package.ok("bash", "-c", command, PYTHONPATH=str(package.folder))

    assert "committed as" in printed
    name = re.search(r"Ran experiment\(s\): (\S+)", text)[1]
    assert re.search(rf"^workspace .*\n{name} .* yes$", text, re.MULTILINE)


@pytest.mark.long
def test_every_command_in_the_readme_of_a_new_project_runs(new_project):
    new_project.ok("git", "commit", "-qam", "Train for two epochs")
    readme = (new_project.folder / "README.md").read_text()
    commands = re.findall(r"^\$ (.*?)(?: +#.*)?$", readme, re.MULTILINE)
    assert len(commands) == 8

    for command in commands:
        new_project.ok("bash", "-c", command.replace("num_epochs=30", "num_epochs=3"))

    assert "dvc.lock" in new_project.ok("git", "show", "--stat", "HEAD")


def test_init_prints_the_commit_commands_if_git_has_no_identity(open_project, tmp_path):
    shell = open_project(tmp_path)
    for name in [name for name in shell.environment if name.startswith("GIT_")]:
        del shell.environment[name]
    shell.environment["GIT_CONFIG_GLOBAL"] = str(tmp_path / "gitconfig")
    shell.environment["GIT_CONFIG_NOSYSTEM"] = "1"

    printed = shell.call("init", str(tmp_path / "own"))

    assert printed.code == 0
    assert "not committed: git has no name and email for you" in printed.out
    commands = re.findall(r"^  (.*git .*)$", printed.out, re.MULTILINE)
    assert len(commands) == 3
    shell.ok("bash", "-c", "\n".join(["set -e", *commands]))
    made = shell.ok("git", "-C", str(tmp_path / "own"), "ls-files").split()
    assert {name.split("/")[0] for name in made} == FILES - {".git"}


def _write_python_with_packages(folder):
    """Write a python3 whose virtual environments can also import the packages of this environment."""
    packages = "\n".join(path for path in sys.path if path.endswith("-packages"))
    script = folder / "python3"
    lines = [
        f"#!{sys.executable}",
        "import pathlib, subprocess, sys",
        'subprocess.run([sys.executable, *sys.argv[1:], "--without-pip"], check=True)',
        '(site,) = pathlib.Path(sys.argv[-1]).glob("lib/python3*/site-packages")',
        f"(site / 'packages.pth').write_text({packages!r})",
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    return script


def test_existing_files_are_never_overwritten(open_project, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.py").write_text("mine\n")

    refused = open_project(tmp_path).call("init", str(folder))

    assert (refused.code, "Traceback" in refused.err) == (2, False)
    assert f"{folder} already has model.py; existing files are never overwritten" in refused.err
    assert [path.name for path in folder.iterdir()] == ["model.py"]


def test_blank_folder_is_refused_and_nothing_is_written(tmp_path, open_project):
    refused = open_project(tmp_path).call("init", "")

    assert refused.code == 2
    assert "'' names no folder. Name one, or pass . for this folder" in refused.err
    assert not list(tmp_path.iterdir())


def test_init_in_a_subfolder_of_a_git_repository_creates_a_project(open_project, tmp_path):
    """The .gitignore of the subfolder is not changed; the missing lines are printed."""
    (tmp_path / "repository/mine").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", tmp_path / "repository"], check=True)
    new_project = open_project(tmp_path / "repository/mine")
    (new_project.folder / ".gitignore").write_text("/data/\n")
    (new_project.folder / "README.md").write_text("mine\n")
    (new_project.folder / "prefect.yaml").write_text("deployments: []\n")
    (new_project.folder / "notes").touch()
    (new_project.folder.parent / "other").touch()
    new_project.ok("git", "add", "../other")

    made = json.loads(new_project.call("init", ".", "--json").ok())["data"]

    printed = "\n".join(made["notes"])
    assert ".gitignore exists. Add these lines to it:\n  __pycache__/\n" in printed
    assert "README" not in printed
    assert "prefect.yaml" not in printed
    assert (new_project.folder / ".gitignore").read_text() == "/data/\n"
    assert (new_project.folder / "README.md").read_text() == "mine\n"
    assert not (new_project.folder / ".git").exists()
    committed = set(new_project.ok("git", "ls-tree", "-r", "--name-only", "HEAD").split())
    unchanged = {".dvc", ".git", ".gitignore", "README.md", "prefect.yaml"}
    assert committed == FILES - unchanged | {".dvc/config", ".dvc/.gitignore", PLOT} == set(made["files"])
    assert made["commit"] == new_project.ok("git", "rev-parse", "--short", "HEAD").strip()
    assert new_project.ok("git", "diff", "--cached", "--name-only") == "other\n"
    assert "subdir" not in (new_project.folder / ".dvc/config").read_text()
    assert new_project.dvc("root").ok().strip() == "."
    assert new_project.call("check").out == "params.yaml is valid\n"


def test_init_prints_the_reason_and_the_command_if_git_refuses_the_commit(open_project, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path / "own"], check=True)
    hook = tmp_path / "own/.git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho the linter is missing >&2\nexit 1\n")
    hook.chmod(0o755)
    shell = open_project(tmp_path)

    printed = shell.call("init", str(tmp_path / "own"))

    assert printed.code == 0
    assert "not committed: `git commit` exited with 1:\n  the linter is missing\n" in printed.out
    hook.unlink()
    [command] = re.findall(r"run:\n  (.*)$", printed.out, re.MULTILINE)
    shell.ok("bash", "-c", command)
    assert shell.ok("git", "-C", str(tmp_path / "own"), "status", "--short") == ""


def test_new_project_has_the_same_pipeline_as_this_one():
    """The two dvc.yaml differ only in the code of the user and in the file with the versions."""

    def read_pipeline(text):
        content = YAML(typ="safe").load(text)
        for name, stage in content["stages"].items():
            stage["cmd"] = stage["cmd"].replace("python -m pipeline", "learner")
            user_code = {"source.py", "model.py", "stages/models", "stages/data/sources"}
            stage["deps"] = [dep for dep in stage.get("deps", []) if dep not in user_code]
            versions = [entry for entry in stage["params"] if isinstance(entry, dict)]
            assert any(name.replace("-", "_") in str(entry) for entry in versions)
            stage["params"] = [entry for entry in stage["params"] if entry not in versions]
        content["artifacts"] = list(content["artifacts"])
        return content

    made = project_files(Installation("learner-pipeline==1"))

    assert read_pipeline(made["dvc.yaml"]) == read_pipeline((ROOT / "dvc.yaml").read_text())
    assert set(made) == FILES - {".dvc", ".git"} | {PLOT}
    for name in (PLOT, "prefect.yaml"):
        assert made[name] == (ROOT / name).read_text(), name


class DistributionWithOrigin(Distribution):
    """A distribution whose direct_url.json, which pip writes, has the text *origin*."""

    def __init__(self, origin):
        self.direct_url = origin  # `origin` is a property since Python 3.13

    def read_text(self, filename):
        texts = {"METADATA": "Name: learner-pipeline\nVersion: 1.2\n", "direct_url.json": self.direct_url}
        return texts.get(filename)

    def locate_file(self, path):
        raise NotImplementedError


COMMENT = "# learner-pipeline 1.2: from LEARNER, in local.mk or as in `make LEARNER=PATH_OR_URL`"
GIT = {
    "url": "https://host/p.git",
    "vcs_info": {"vcs": "git", "commit_id": "abc", "requested_revision": "v1"},
}


@pytest.mark.parametrize(
    ("origin", "requirement", "local"),
    [
        (None, "learner-pipeline==1.2", None),
        (GIT, "learner-pipeline @ git+https://host/p.git@abc", None),
        ({"url": "https://host/p.whl", "archive_info": {}}, "learner-pipeline @ https://host/p.whl", None),
        ({"url": "file:///a/b%20c", "dir_info": {}}, COMMENT, "LEARNER := '/a/b c'\n"),
        ({"url": "file:///a", "dir_info": {"editable": True}}, COMMENT, "LEARNER := --editable '/a'\n"),
        ({"url": "file:///a$b", "dir_info": {}}, COMMENT, "LEARNER := '/a$$b'\n"),
    ],
)
def test_requirement_repeats_the_installation_without_a_local_path(origin, requirement, local):
    package = DistributionWithOrigin(origin and json.dumps(origin))

    assert find_installation(package) == Installation(requirement, local)


def test_path_of_the_environment_is_quoted_for_make(tmp_path):
    folder = tmp_path / "a $b #c"
    text = project_files(Installation("learner-pipeline==1"), folder)["local.mk"]
    (tmp_path / "Makefile").write_text(f"{text}export LEARNER_BIN\nprint:\n\t@printenv LEARNER_BIN\n")

    shown = subprocess.run(
        ["make", "-C", tmp_path, "-s", "print"], capture_output=True, text=True, check=True
    )

    assert f"{folder}\n" in shown.stdout


def test_package_that_is_not_installed_is_refused():
    with pytest.raises(StageError, match="in which it is not installed. Install it with `pip install`"):
        find_this_package("no-such-package")
