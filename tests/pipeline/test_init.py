"""`learner init`: a project for a user's own model and data."""

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.installation import Installation, installation, this_package
from pipeline.new_project import PLOT, project_files
from stages import fit
from stages.contracts.errors import StageError

ROOT = Path(__file__).parents[2]
FILES = {
    *(".dvc", ".dvcignore", ".git", ".gitignore", "Makefile", "dvc.yaml", "model.py", "params.yaml"),
    *("requirements.txt", "source.py", "test_project.py", "versions.yaml"),
}
AFTER_BUILD = ["build-learner", "fit", "save-model"]


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
    told = package.learner("init", str(tmp_path / "own"))
    assert told.code == 0, told.text
    made = type(package)(tmp_path / "own", package.environment["PREFECT_HOME"])
    made.environment["PYTHONPATH"] = str(package.folder)
    made.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    return made


def test_an_edit_of_the_own_model_reruns_what_is_built_of_it_and_a_new_version_its_stage(own, package):
    assert ran(own.ok("dvc", "repro")) == ["create-artifact-dir", "load-data", *AFTER_BUILD]
    made = own.files("artifacts/model.mpk.gz")

    package.edit("stages/learner/loop.py", '"""The loop.', '"""The loop, commented.')
    assert ran(own.ok("dvc", "repro")) == []

    own.edit("model.py", "nn.ReLU()", "nn.Tanh()")
    assert sorted(ran(own.ok("dvc", "repro"))) == AFTER_BUILD
    assert own.files("artifacts/model.mpk.gz") != made

    package.edit("stages/fit.py", f'VERSION = "{fit.VERSION}"', 'VERSION = "new"')
    package.edit("stages/models/steps.py", "F.cross_entropy(logits, targets)", "F.nll_loss(logits, targets)")
    old = own.learner("check")
    assert old.code == 1
    assert (
        f"versions.yaml: fit is {fit.VERSION}, and installed is new: `learner versions` writes it anew"
        in old.out
    )
    refused = own.learner("stage", "fit")
    assert (refused.code, "Traceback" in refused.err) == (1, False)
    assert f"versions.yaml says that fit is {fit.VERSION}, and installed is new" in refused.err
    told = own.learner("versions").out
    assert told.startswith(
        f"versions.yaml: fit is {fit.VERSION}, and installed is new\nversions.yaml: models is "
    )
    assert own.learner("versions").out == "versions.yaml says what is installed\n"
    assert set(json.loads(own.ok("dvc", "status", "--json"))) == {"build-learner", "fit"}


def test_an_empty_folder_becomes_a_project_whose_make_repro_trains(package, tmp_path):
    """All as a user does it, but for pip: what it would download is lent by this environment."""
    python = _lending_python(tmp_path)
    lean = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
    package.ok(str(python), "-m", "venv", str(tmp_path / "venv"))
    package.ok(str(tmp_path / "venv/bin/python"), "-m", "pip", "install", "-q", str(package.folder), **lean)
    (tmp_path / "own").mkdir()
    own = type(package)(tmp_path / "own", package.environment["PREFECT_HOME"])

    told = own.ok(str(tmp_path / "venv/bin/learner"), "init", ".")

    assert "next: make repro" in told
    assert {path.name for path in own.folder.iterdir()} == FILES | {"local.mk"}
    own.edit("params.yaml", "num_epochs: 20", "num_epochs: 3")
    text = own.ok("make", "repro", f"PYTHON={python}", **lean)
    assert ran(text) == ["create-artifact-dir", "load-data", *AFTER_BUILD]
    metrics = json.loads((own.folder / "artifacts/metrics.json").read_text())
    assert metrics["valid"]["Accuracy"] > 60
    assert (own.folder / "artifacts/model.mpk.gz").exists()
    own.ok("git", "add", "-A")
    assert str(tmp_path) not in own.ok("git", "diff", "--cached")
    assert ran(own.ok("make", "repro", **lean)) == []
    assert "2 passed" in own.ok("make", "test", **lean)


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


def test_nothing_that_is_there_is_overwritten(project, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.py").write_text("mine\n")

    refused = project.learner("init", str(folder))

    assert (refused.code, "Traceback" in refused.err) == (2, False)
    assert f"{folder} has model.py already, and nothing is overwritten" in refused.err
    assert [path.name for path in folder.iterdir()] == ["model.py"]


def test_in_a_repository_of_gits_a_folder_becomes_a_project_of_its_own(project, tmp_path):
    """With its own .gitignore, which is left as it is; what it lacks is said."""
    (tmp_path / "repository/mine").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", tmp_path / "repository"], check=True)
    own = type(project)(tmp_path / "repository/mine", project.environment["PREFECT_HOME"])
    own.environment["PYTHONPATH"] = str(project.folder)
    (own.folder / ".gitignore").write_text("/data/\n")
    (own.folder / "notes").touch()

    told = own.ok(sys.executable, "-m", "pipeline", "init", ".")

    assert ".gitignore was there; add to it:\n  __pycache__/\n" in told
    assert (own.folder / ".gitignore").read_text() == "/data/\n"
    assert not (own.folder / ".git").exists()
    staged = set(own.ok("git", "diff", "--cached", "--name-only", "--relative").split())
    made = FILES - {".dvc", ".git", ".gitignore"} | {".dvc/config", ".dvc/.gitignore", PLOT}
    assert staged == made
    assert "subdir" not in (own.folder / ".dvc/config").read_text()
    assert own.ok("dvc", "root").strip() == "."
    assert own.learner("check").out == "params.yaml is valid\n"


def test_a_new_project_has_the_pipeline_of_this_one():
    """Its dvc.yaml differs in what belongs to the user, and in where the versions come from."""

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
def test_a_project_names_this_package_as_it_was_installed_and_no_machines_path(origin, requirement, local):
    package = Installed(origin and json.dumps(origin))

    assert installation(package) == Installation(requirement, local)


def test_what_is_not_installed_cannot_be_named():
    with pytest.raises(StageError, match="no-such-package is not installed, only started"):
        this_package("no-such-package")
