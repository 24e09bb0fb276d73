"""What is installed and what CI runs is pinned by hashes."""

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-cuda.lock")
ENTRY = re.compile(r"([\w.-]+)(?:\[[\w, ]+\])?==([\w.+!]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def read_lock(name):
    """Return package to version, after a check that every line is a comment or part of an entry."""
    text = (ROOT / name).read_text()
    assert re.sub(r"^#.*\n", "", ENTRY.sub("", text), flags=re.MULTILINE) == ""
    return {canonicalize_name(package): version for package, version, _ in ENTRY.findall(text)}


def read_constraints():
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_the_lock_has_the_tested_version_and_hashes(name):
    lock, tested = read_lock(name), read_constraints()

    assert len(lock) > 150
    assert [
        each for each, version in lock.items() if tested.get(each, version) != version.split("+")[0]
    ] == []


def list_needed(requirements, extra, found):
    """Add the names of *requirements*, and of what they require, to *found*."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = canonicalize_name(requirement.name)
            known = found.setdefault(name, set())
            for each in {"", *requirement.extras} - known:
                known.add(each)
                list_needed(distribution(name).requires or [], each, found)
    return found


def test_lock_has_all_that_is_needed():
    """A build of torch for CUDA needs packages that the lock of the CPU build does not have."""
    needed = list_needed(distribution("learner-pipeline").requires, "page", {})

    assert needed.keys() - read_lock("requirements-cuda.lock").keys() == set()
    if torch.version.cuda is None:
        assert needed.keys() - read_lock("requirements.lock").keys() == set()


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_host(name):
    assert not re.search(r"://|--(extra-)?index-url|--find-links|@", (ROOT / name).read_text())


def test_builds_of_torch_have_hashes_of_their_own():
    cpu, cuda = ((ROOT / name).read_text() for name in LOCKS)
    hashes = {re.search(r"^torch==\S+ \\\n    --hash=(\S+)", text, re.MULTILINE)[1] for text in (cpu, cuda)}

    assert len(hashes) == 2


def test_actions_of_workflows_are_pinned_by_commit():
    workflows = list((ROOT / ".github/workflows").iterdir())
    used = [each for path in workflows for each in re.findall(r"uses: *(.*)", path.read_text())]

    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)] == []
