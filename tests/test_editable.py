"""An install of this project with `pip install --editable PATH`."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USER_CODE = """
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LearningRateMetric, LossMetric

LearnerBuilder("artifacts").metrics(LossMetric(), AccuracyMetric(), LearningRateMetric())
reveal_type(LearnerBuilder("artifacts").num_epochs)
epochs: str = LearnerBuilder("artifacts").num_epochs(3)
"""


@pytest.fixture
def environment(tmp_path):
    """Return a virtual environment with setuptools, which pip needs for a build, and with this project."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("setuptools", "_distutils_hack"):
        for path in Path(sysconfig.get_path("purelib")).glob(f"{name}*"):
            (shared / path.name).symlink_to(path)
    [packages] = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (packages / "shared.pth").write_text(f"{shared}\n")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python"]
    subprocess.run([*pip, "install", *offline, "--editable", ROOT], check=True)
    return tmp_path / "venv"


def test_editable_install_adds_the_folder_of_the_project_to_the_search_path(environment):
    """A type checker follows such a path, and no import hook."""
    [path] = environment.glob("lib/python3*/site-packages/__editable__*")

    assert (path.suffix, path.read_text().strip()) == (".pth", str(ROOT))
    assert (ROOT / "stages/py.typed").exists()


@pytest.mark.long  # the test before
def test_type_checker_finds_the_types_of_an_editable_install(environment, tmp_path):
    python = environment / "bin/python"
    (tmp_path / "use.py").write_text(USER_CODE)

    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", tmp_path / "cache"]
    found = subprocess.run([*command, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (
        'Revealed type is "def (num_epochs: int) -> stages.learner.builder.LearnerBuilder"' in found.stdout
    ), found.stdout
    assert (
        'Incompatible types in assignment (expression has type "LearnerBuilder", variable has type "str")'
        in found.stdout
    )
    assert "Found 1 error" in found.stdout, found.stdout
