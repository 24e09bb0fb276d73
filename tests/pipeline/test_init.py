"""`learner init`: a project for a user's own model and data."""

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.installation import Installation, find_installation, find_this_package
from pipeline.scaffold.new_project import PLOT, project_files
from stages import fit
from stages.contracts.errors import StageError

ROOT = Path(__file__).parents[2]
FILES = {
    *(".dvc", ".dvcignore", ".git", ".gitignore", "Makefile", "README.md", "dvc.yaml", "model.py"),
    *("params.yaml", "requirements.txt", "source.py", "test_project.py", "versions.yaml"),
}
AFTER_BUILD = ["build-learner", "fit", "save-model"]
LEAN = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}


def ran(text):
    """The stages whose command DVC started."""
    return re.findall(r"Running stage '(.*)'", text)


@pytest.fixture
def package(project, tmp_path):
    """A copy of this project, to install or to start from."""
    return project.copied_to(tmp_path / "package")


@pytest.fixture
def own(package, tmp_path):
    """A project that `learner init` made, with a run of two epochs ahead; it uses the copy of this one."""
    printed = package.learner("init", str(tmp_path / "own"))
    assert printed.code == 0, printed.text
    made = type(package)(tmp_path / "own", package.environment["PREFECT_HOME"])
    made.environment["PYTHONPATH"] = str(package.folder)
    made.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    return made


def test_edited_model_and_new_version_rerun_the_stages_that_depend_on_them(own, package):
    assert ran(own.ok("dvc", "repro")) == ["create-artifact-dir", "load-data", *AFTER_BUILD]
    made = own.files("artifacts/model.mpk.gz")

    package.edit("stages/learner/loop.py", '"""The ', '"""The commented ')
    assert ran(own.ok("dvc", "repro")) == []

    own.edit("model.py", "nn.ReLU()", "nn.Tanh()")
    assert sorted(ran(own.ok("dvc", "repro"))) == AFTER_BUILD
    assert own.files("artifacts/model.mpk.gz") != made

    package.edit("stages/fit.py", f'VERSION = "{fit.VERSION}"', 'VERSION = "new"')
    package.edit("stages/models/steps.py", "F.cross_entropy(logits, targets)", "F.nll_loss(logits, targets)")
    old = own.learner("check")
    assert old.code == 1
    assert f"versions.yaml: fit is {fit.VERSION}, but new is installed. Run `learner versions`" in old.out
    refused = own.learner("stage", "fit")
    assert (refused.code, "Traceback" in refused.err) == (1, False)
    assert f"versions.yaml: fit is {fit.VERSION}, but new is installed" in refused.err
    printed = own.learner("versions").out
    assert printed.startswith(
        f"versions.yaml: fit is {fit.VERSION}, but new is installed\nversions.yaml: models is "
    )
    assert own.learner("versions").out == "versions.yaml is up to date\n"
    assert set(json.loads(own.ok("dvc", "status", "--json"))) == {"build-learner", "fit"}


@pytest.fixture
def installed(package, tmp_path):
    """A project that `learner init` made, installed in an environment that is not active, and its output.

    All is as a user does it, but for pip: what it would download is lent by this environment.
    """
    package.ok(str(_lending_python(tmp_path)), "-m", "venv", str(tmp_path / "venv"))
    package.ok(str(tmp_path / "venv/bin/python"), "-m", "pip", "install", "-q", str(package.folder), **LEAN)
    (tmp_path / "own").mkdir()
    own = type(package)(tmp_path / "own", package.environment["PREFECT_HOME"])
    return own, own.ok(str(tmp_path / "venv/bin/learner"), "init", ".")


def test_new_project_trains_with_make_repro(installed, tmp_path):
    """`make` uses the environment that `learner init` ran in."""
    own, printed = installed

    assert f"environment: {tmp_path / 'venv'}, from local.mk" in printed
    assert {path.name for path in own.folder.iterdir()} == FILES | {"local.mk"}
    own.edit("params.yaml", "num_epochs: 20", "num_epochs: 3")
    assert ran(own.ok("make", "repro")) == ["create-artifact-dir", "load-data", *AFTER_BUILD]
    metrics = json.loads((own.folder / "artifacts/metrics.json").read_text())
    assert metrics["valid"]["Accuracy"] > 60
    assert (own.folder / "artifacts/model.mpk.gz").exists()
    own.ok("git", "add", "-A")
    assert str(tmp_path) not in own.ok("git", "show", "HEAD") + own.ok("git", "diff", "--cached")
    assert ran(own.ok("make", "repro")) == []
    assert "2 passed" in own.ok("make", "test")
    assert not (own.folder / ".venv").exists()


def test_printed_commands_activate_the_environment_train_and_compare(installed):
    own, printed = installed
    commands = re.findall(r"^(?:next|then): (.*)$", printed, re.MULTILINE)
    assert len(commands) == 2

    text = own.ok("bash", "-c", "\n".join(["set -e", *commands]))

    name = re.search(r"Ran experiment\(s\): (\S+)", text)[1]
    assert re.search(rf"^workspace .*\n{name} .* yes$", text, re.MULTILINE)


def test_make_reports_a_missing_environment_and_installs_one_on_another_machine(installed, package, tmp_path):
    own, _ = installed
    python = tmp_path / "python3"
    (tmp_path / "venv").rename(tmp_path / "moved")
    assert f"learner is not installed in {tmp_path / 'venv/bin'}" in own.run("make", "test").text

    own.ok("git", "clone", "-q", ".", str(tmp_path / "clone"))
    clone = type(own)(tmp_path / "clone", own.environment["PREFECT_HOME"])
    where = f"LEARNER=--editable {package.folder}"

    assert "2 passed" in clone.ok("make", "test", where, f"PYTHON={python}", **LEAN)
    [path] = (clone.folder / ".venv").glob("lib/python3*/site-packages/__editable__*.pth")
    assert path.read_text().strip() == str(package.folder)  # not an import hook, so type checkers follow it


def test_experiment_and_compare_work_right_after_init(package, tmp_path):
    printed = package.learner("init", str(tmp_path / "own")).out
    [command] = re.findall(r"^next: (.*)$", printed, re.MULTILINE)

    text = package.ok("bash", "-c", command, PYTHONPATH=str(package.folder))

    assert "committed as" in printed
    name = re.search(r"Ran experiment\(s\): (\S+)", text)[1]
    assert re.search(rf"^workspace .*\n{name} .* yes$", text, re.MULTILINE)


def test_every_command_in_the_readme_of_a_new_project_runs(own):
    own.ok("git", "commit", "-qam", "Train for two epochs")
    readme = (own.folder / "README.md").read_text()
    commands = re.findall(r"^\$ (.*?)(?: +#.*)?$", readme, re.MULTILINE)
    assert len(commands) == 8

    for command in commands:
        own.ok("bash", "-c", command.replace("num_epochs=30", "num_epochs=3"))

    assert "dvc.lock" in own.ok("git", "show", "--stat", "HEAD")


def test_init_prints_the_commit_commands_if_git_has_no_identity(package, tmp_path):
    for name in [name for name in package.environment if name.startswith("GIT_")]:
        del package.environment[name]
    package.environment["GIT_CONFIG_GLOBAL"] = str(tmp_path / "gitconfig")
    package.environment["GIT_CONFIG_NOSYSTEM"] = "1"

    printed = package.learner("init", str(tmp_path / "own"))

    assert printed.code == 0
    assert "not committed: git has no name and email for you" in printed.out
    commands = re.findall(r"^  (.*git .*)$", printed.out, re.MULTILINE)
    assert len(commands) == 3
    package.ok("bash", "-c", "\n".join(["set -e", *commands]))
    made = package.ok("git", "-C", str(tmp_path / "own"), "ls-files").split()
    assert {name.split("/")[0] for name in made} == FILES - {".git"}


def _lending_python(folder):
    """A python3 whose virtual environments also see the packages of this one."""
    packages = "\n".join(path for path in sys.path if path.endswith("-packages"))
    script = folder / "python3"
    lines = [
        f"#!{sys.executable}",
        "import pathlib, subprocess, sys",
        'subprocess.run([sys.executable, *sys.argv[1:], "--without-pip"], check=True)',
        '(site,) = pathlib.Path(sys.argv[-1]).glob("lib/python3*/site-packages")',
        f"(site / 'lent.pth').write_text({packages!r})",
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    return script


def test_existing_files_are_never_overwritten(project, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.py").write_text("mine\n")

    refused = project.learner("init", str(folder))

    assert (refused.code, "Traceback" in refused.err) == (2, False)
    assert f"{folder} already has model.py; existing files are never overwritten" in refused.err
    assert [path.name for path in folder.iterdir()] == ["model.py"]


def test_init_in_a_subfolder_of_a_git_repository_creates_a_project(project, tmp_path):
    """Its .gitignore is not changed; the missing lines are printed."""
    (tmp_path / "repository/mine").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", tmp_path / "repository"], check=True)
    own = type(project)(tmp_path / "repository/mine", project.environment["PREFECT_HOME"])
    own.environment["PYTHONPATH"] = str(project.folder)
    (own.folder / ".gitignore").write_text("/data/\n")
    (own.folder / "README.md").write_text("mine\n")
    (own.folder / "notes").touch()
    (own.folder.parent / "other").touch()
    own.ok("git", "add", "../other")

    printed = own.ok(sys.executable, "-m", "pipeline", "init", ".")

    assert ".gitignore exists. Add these lines to it:\n  __pycache__/\n" in printed
    assert "README" not in printed
    assert (own.folder / ".gitignore").read_text() == "/data/\n"
    assert (own.folder / "README.md").read_text() == "mine\n"
    assert not (own.folder / ".git").exists()
    committed = set(own.ok("git", "ls-tree", "-r", "--name-only", "HEAD").split())
    made = FILES - {".dvc", ".git", ".gitignore", "README.md"} | {".dvc/config", ".dvc/.gitignore", PLOT}
    assert committed == made
    assert own.ok("git", "diff", "--cached", "--name-only") == "other\n"
    assert "subdir" not in (own.folder / ".dvc/config").read_text()
    assert own.ok("dvc", "root").strip() == "."
    assert own.learner("check").out == "params.yaml is valid\n"


def test_init_prints_the_reason_and_the_command_if_git_refuses_the_commit(package, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path / "own"], check=True)
    hook = tmp_path / "own/.git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho the linter is missing >&2\nexit 1\n")
    hook.chmod(0o755)

    printed = package.learner("init", str(tmp_path / "own"))

    assert printed.code == 0
    assert "not committed: `git commit` exited with 1:\n  the linter is missing\n" in printed.out
    hook.unlink()
    [command] = re.findall(r"run:\n  (.*)$", printed.out, re.MULTILINE)
    package.ok("bash", "-c", command)
    assert package.ok("git", "-C", str(tmp_path / "own"), "status", "--short") == ""


def test_new_project_has_the_same_pipeline_as_this_one():
    """Its dvc.yaml differs in the code of the user, and in the file with the versions."""

    def pipeline(text):
        content = YAML(typ="safe").load(text)
        for name, stage in content["stages"].items():
            stage["cmd"] = stage["cmd"].replace("python -m pipeline", "learner")
            own = {"source.py", "model.py", "stages/models", "stages/data/sources.py"}
            stage["deps"] = [dep for dep in stage.get("deps", []) if dep not in own]
            versions = [entry for entry in stage["params"] if isinstance(entry, dict)]
            assert any(name.replace("-", "_") in str(entry) for entry in versions)
            stage["params"] = [entry for entry in stage["params"] if entry not in versions]
        content["artifacts"] = list(content["artifacts"])
        return content

    made = project_files(Installation("learner-pipeline==1"))

    assert pipeline(made["dvc.yaml"]) == pipeline((ROOT / "dvc.yaml").read_text())
    assert set(made) == FILES - {".dvc", ".git"} | {PLOT}
    assert made[PLOT] == (ROOT / PLOT).read_text()


class Installed(Distribution):
    """A distribution of which pip left this *origin*."""

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, filename):
        texts = {"METADATA": "Name: learner-pipeline\nVersion: 1.2\n", "direct_url.json": self.origin}
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
def test_requirement_repeats_the_installation_without_a_path_of_this_machine(origin, requirement, local):
    package = Installed(origin and json.dumps(origin))

    assert find_installation(package) == Installation(requirement, local)


def test_path_of_the_environment_is_quoted_for_make(tmp_path):
    folder = tmp_path / "a $b #c"
    text = project_files(Installation("learner-pipeline==1"), folder)["local.mk"]
    (tmp_path / "Makefile").write_text(f"{text}export LEARNER_BIN\nshown:\n\t@printenv LEARNER_BIN\n")

    shown = subprocess.run(
        ["make", "-C", tmp_path, "-s", "shown"], capture_output=True, text=True, check=True
    )

    assert f"{folder}\n" in shown.stdout


def test_package_that_is_not_installed_is_refused():
    with pytest.raises(StageError, match="in which it is not installed. Install it with `pip install`"):
        find_this_package("no-such-package")
