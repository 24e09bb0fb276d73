"""Fixtures for the tests of security."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from hostile import World, make_project


@pytest.fixture(scope="session")
def base_project(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("hostile") / "world")
    world.folder.mkdir()
    make_project(world)
    return world


@pytest.fixture
def world(base_project, tmp_path):
    """Return a stranger's repository with two epochs of results, which no user has cloned yet."""
    shutil.copytree(base_project.folder, tmp_path / "world", symlinks=True)
    made = World(tmp_path / "world")
    for path in (made.origin / ".dvc/config", *made.origin.rglob("*.py")):
        path.write_text(path.read_text().replace(str(base_project.folder), str(made.folder)))
    return made
