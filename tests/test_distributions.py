"""The wheel and the source distribution of this package."""

import csv
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from pages import page
from repository import ROOT, list_files

BACKEND = (
    "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NO_PACKAGE = ("tests/", "benchmarks/", ".github/")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a copy of the repository, because a build writes files."""
    folder = tmp_path_factory.mktemp("copy")
    for name in list_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def build(kind, source, folder):
    """Call the hook *kind* of the build backend in *source*, and return the path of its result."""
    command = [sys.executable, "-c", BACKEND, kind, str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def metadata(copy, tmp_path_factory):
    folder = build("prepare_metadata_for_build_wheel", copy, tmp_path_factory.mktemp("metadata"))
    return email.message_from_string((folder / "METADATA").read_text())


def test_metadata_has_urls_classifiers_and_keywords(metadata):
    assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in PROJECT["urls"].items()]
    assert metadata.get_all("Classifier") == PROJECT["classifiers"]
    assert metadata["Keywords"].split(",") == PROJECT["keywords"]


def test_links_of_the_readme_in_the_metadata_are_absolute(metadata):
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    repository = PROJECT["urls"]["Repository"]

    assert len(targets) == page("README.md").text.count("](")
    assert [target for target in targets if "://" not in target] == []
    assert f"{repository}/raw/main/.github/compare.png" in targets
    for target in targets:
        if target.startswith(repository):
            assert (ROOT / target.split("/main/")[1].partition("#")[0]).exists(), target


@pytest.mark.long  # the metadata above are those of the wheel
def test_wheel_has_the_packages_and_no_tests(copy, tmp_path):
    wheel = zipfile.ZipFile(build("build_wheel", copy, tmp_path))

    names = set(wheel.namelist())
    expected = {
        name for name in list_files() if name.startswith(("stages/", "pipeline/")) and name.endswith(".py")
    }
    assert expected <= names
    assert not any(name.startswith(NO_PACKAGE) for name in names)


@pytest.fixture(scope="module")
def unpacked(copy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("build_sdist", copy, folder)) as archive:
        archive.extractall(folder, filter="data")
    [source] = folder.glob("*/")
    return source


@pytest.mark.long  # only the archive has this list
def test_source_distribution_has_every_file_of_the_repository(unpacked):
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}

    assert set(list_files()) <= names


@pytest.mark.long  # only the archive has no git repository
@pytest.mark.parametrize(
    "tests", ["tests/lint", "tests/optim/test_schedules.py", "tests/pipeline/commands/test_check.py"]
)
def test_tests_of_the_source_distribution_run_from_it(tests, unpacked):
    command = [sys.executable, "-m", "pytest", tests]
    environment = os.environ | {
        "PYTHONPATH": str(unpacked)
    }  # an editable install has the code of the repository
    done = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


PROGRAM = re.compile(r"# (\w+\.py)\n")


def script_of(quick_start):
    """Return a script that writes the programs of a page and runs its commands, in their order."""
    lines = ["set -e"]
    for language, content in re.findall(r"^```(\w+)\n(.*?)^```", quick_start.text, re.DOTALL | re.MULTILINE):
        if language == "python":
            lines.append(f"cat > {PROGRAM.match(content)[1]} <<'END'\n{content}END")
        else:
            lines += [line.removeprefix("$ ") for line in content.splitlines()]
    return "\n".join(lines)


@pytest.mark.long  # test_tutorial.py has the same commands in the environment of the tests
def test_commands_of_the_quick_start_run_in_a_new_environment(copy, open_project, tmp_path):
    build("build_wheel", copy, tmp_path)
    path = os.pathsep.join([f"{sys.base_prefix}/bin", os.defpath])
    environment = {"PATH": path, "PYTHONPATH": "", "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}

    script = script_of(page("pipeline/scaffold/quickstart.md"))
    printed = open_project(tmp_path).ok("bash", "-c", script, **environment)

    rows = list(csv.DictReader((tmp_path / "spirals/predictions.csv").open()))
    classes = " ".join(row["class"] for row in rows)
    assert len(rows) == 9
    assert f"[{classes}]\n" in printed, "of run_onnx.py"
    assert {path.name for path in (tmp_path / "spirals/artifacts/exports").iterdir()} >= {
        *("model.safetensors", "model.onnx", "model.pt2", "README.md")
    }
    assert (tmp_path / "spirals/published/README.md").exists()
