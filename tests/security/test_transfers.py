"""A stranger's outputs are written nowhere outside of the clone, and names that lead there are reported."""

import re
from pathlib import Path

import pytest
from dvc.fs import localfs
from dvc.ignore import DvcIgnorePatterns
from dvc.parsing import DataResolver, interpolate
from dvc.parsing.context import Context
from dvc.parsing.interpolate import KEYCRE
from dvc.repo import Repo
from hostile import (
    ODD_HASHES,
    ODD_PATHS,
    TRACKED,
    deliver_list,
    deliver_lock,
    deliver_lock_links,
    deliver_temporary_links,
    put_results,
)
from test_reading import EXIT_CODES

from pipeline.project import snapshot
from pipeline.project.revisions.dvc_checks import MAX_MATRIX_STAGES, UnsafeFileError, apply_checks
from pipeline.project.revisions.revision import Revision
from stages.contracts.errors import StageError
from stages.system.files import is_md5, is_name_below

RESUME = "resume big --epoch 1 --no-run"
VERIFY = "doctor --deep --timeout 0.01"
NAMES_OUTSIDE = (
    "output outside",
    "absolute output",
    "object outside",
    "list outside",
    "list with an object outside",
)


def deliver_link_to_output(world):
    """A link in the folder of an output, and the output behind it."""
    world.link("artifacts/train", world.canaries)


def transfer(world, *words):
    """Run a command in the clone, and return its result after checks of what every command promises."""
    before = world.snapshot("params.yaml", "artifacts", ".runs")
    done = world.learner(*words)
    assert world.snapshot("params.yaml", "artifacts", ".runs") == before, done.text
    assert done.code in EXIT_CODES, done.text
    assert "Traceback" not in done.text
    assert not done.searched
    return done


def fetch_experiments(world):
    """Fetch the experiments of the stranger with git alone."""
    world.git("fetch", "--quiet", "origin", "refs/exps/*:refs/exps/*", folder=world.clone)


def test_resume_of_honest_results(world):
    put_results(world)
    world.commit_experiment("big")
    world.deliver()
    fetch_experiments(world)

    assert transfer(world, *RESUME.split()).code == 0


@pytest.mark.parametrize("name", [*NAMES_OUTSIDE, "nothing"])
def test_names_outside_of_the_clone_are_reported(world, name):
    world.deliver(TRACKED[name])
    world.fill_cache()

    done = transfer(world, *VERIFY.split())

    problems = re.findall(r"^problem +outputs ", done.out, re.MULTILINE)
    assert len(problems) == (name != "nothing"), done.text


def test_link_to_an_output_outside_of_the_clone_is_reported(world):
    world.deliver(deliver_link_to_output)

    done = transfer(world, *VERIFY.split())

    assert (done.code, "git tracks the link" in done.out) == (1, True)


@pytest.mark.parametrize("name", ["absolute output", "list outside"])
def test_resume_of_a_hostile_experiment_writes_only_in_the_clone(world, name):
    TRACKED[name](world)
    world.commit_experiment("big")
    world.deliver()
    fetch_experiments(world)

    transfer(world, *RESUME.split())


@pytest.mark.parametrize("name", ["list outside", "list with an object outside"])
def test_output_of_a_hostile_revision_is_not_copied(world, name, tmp_path, monkeypatch):
    world.deliver(TRACKED[name])
    before = world.snapshot()
    monkeypatch.chdir(world.clone)

    with pytest.raises(StageError):
        Revision(world.git("rev-parse", "HEAD")).copy(Path("artifacts/plots"), tmp_path / "copy/of/plots")

    assert world.snapshot() == before


@pytest.mark.parametrize("untracked", [deliver_lock_links, deliver_temporary_links])
def test_resume_follows_no_link_of_a_lock_or_a_temporary_file(world, untracked):
    world.deliver(untracked=[untracked])
    world.fill_cache()

    done = transfer(world, "resume", "HEAD", "--epoch", "1", "--no-run")

    assert done.code == (1 if untracked is deliver_lock_links else 0), done.text


@pytest.mark.parametrize("path", ODD_PATHS)
def test_list_with_an_odd_path_is_refused(world, path):
    path = path.format(world=world)
    world.deliver(deliver_list(path))
    world.fill_cache()

    done = transfer(world, "compare")

    assert (done.code, "not below its folder" in done.err, is_name_below(path)) == (1, True, False), done.text


@pytest.mark.parametrize("md5", ODD_HASHES)
def test_odd_hash_in_a_lockfile_and_in_a_list_is_refused(world, md5):
    world.deliver(deliver_lock(md5=md5))

    assert not is_md5(md5)
    done = transfer(world, "compare")
    assert (done.code, "not a path with a hash" in done.err) == (1, True), done.text


@pytest.mark.parametrize(
    ("option", "url"),
    [
        ("configpath", "s3://bucket"),
        ("'CredentialPath'", "s3://bucket"),
        ("bearer_token_command", "webdavs://host"),
    ],
)
@pytest.mark.parametrize("place", ["commit", "experiment"])
def test_settings_of_a_remote_in_a_file_of_the_repository_are_refused(world, place, option, url, capfd):
    """DVC's remote for S3 gives boto3 that file, and runs the program that it names as credential_process."""
    remote = f"['remote \"s\"']\n    url = {url}\n    {option} = settings\n"
    world.write(".dvc/config", f"[core]\n    remote = s\n{remote}")
    if place == "experiment":
        world.commit_experiment("big")
    world.deliver()

    commands = {"commit": ("resume HEAD --epoch 1 --no-run", "status"), "experiment": (RESUME,)}
    fetch_experiments(world)

    for command in commands[place]:
        done = transfer(world, *command.split())
        text = done.text + capfd.readouterr().err  # of DVC, in a process of its own
        assert (done.code, "program. If you trust it" in text) == (1, True), text


@pytest.mark.parametrize("pattern", ["*a*a*a*a*b", "x/*a*a*a*a*b/", "a/**/b/**/c/**/d/**/e", "!*.*.*.*.*"])
def test_pattern_that_takes_hours_to_match_is_refused(pattern):
    """DVC matches it with a regular expression, which not even a signal interrupts."""
    apply_checks()

    with pytest.raises(UnsafeFileError, match="may take hours"):
        DvcIgnorePatterns([pattern], "/x", "/")


@pytest.mark.parametrize("content", [b"\xff\n", b"!\n", None])
def test_dvcignore_that_cannot_be_read_is_refused(content, tmp_path):
    apply_checks()
    path = tmp_path / ".dvcignore"
    path.write_bytes(content) if content else path.symlink_to("/dev/zero")

    with pytest.raises(UnsafeFileError, match=r"\.dvcignore"):
        DvcIgnorePatterns.from_file(str(path), localfs, ".dvcignore")


@pytest.mark.parametrize("pattern", ["*.pyc", "**/a/**/*.b*", "a/*/b/*/c/*/d/*/*.tmp", "/x/**", "*_*_*.txt"])
def test_ordinary_pattern_is_accepted(pattern):
    apply_checks()

    assert DvcIgnorePatterns([pattern], "/x", "/").pattern_list == [(pattern, "")]


def test_all_matrices_of_a_file_count_together(world):
    apply_checks()
    half = {"cmd": "true", "matrix": {"a": [*range(MAX_MATRIX_STAGES // 200)], "b": [*range(101)]}}

    with Repo(str(world.origin)) as repo:
        assert len([*DataResolver(repo, ".", {"stages": {"one": half}}).get_keys()]) == 101 * 50
        with pytest.raises(UnsafeFileError, match="all matrices may make"):
            [*DataResolver(repo, ".", {"stages": {"one": half, "two": half}}).get_keys()]


LONG = "x" * 1_000_000
EXPANSIONS = {
    "text": {"vars": [{"big": LONG}], "stages": {"a": {"cmd": "${big} " * 100}}},
    "mapping": {"vars": [{"big": {LONG: 1}}], "stages": {"a": {"cmd": "x ${big} " * 100}}},
    "directory": {"vars": [{"big": LONG}], "stages": {"a": {"cmd": "x", "wdir": "${big} " * 100}}},
    "plot": {"vars": [{"big": LONG}], "plots": [{"${big} " * 100: {}}]},
    "stages of a matrix": {"stages": {"a": {"cmd": f"{LONG} ${{item.n}}", "matrix": {"n": [*range(100)]}}}},
    "stages with vars": {
        "stages": {"a": {"cmd": f"{LONG} ${{item.n}}", "vars": [{"b": 1}], "matrix": {"n": [*range(100)]}}}
    },
    "names of a matrix": {"stages": {"a": {"cmd": "x", "matrix": {"n": [LONG], "m": [*range(100)]}}}},
}
"""Small contents of a dvc.yaml that stand for large ones."""


@pytest.mark.parametrize("content", EXPANSIONS.values(), ids=EXPANSIONS)
def test_dvc_yaml_that_stands_for_a_larger_one_than_may_be_read_is_refused(content, world):
    apply_checks()

    with Repo(str(world.origin)) as repo, pytest.raises(UnsafeFileError, match="67,108,864 characters"):
        resolver = DataResolver(repo, ".", content)
        [*map(resolver.resolve_one, resolver.get_keys()), resolver.resolve_plots()]


@pytest.mark.parametrize("text", ["${a} ${b.c}", "\\${a} ${a", "${a\n} ${b\n${a}}", "}${}${${a}", "$}{", ""])
def test_values_in_a_string_are_those_that_dvc_finds(text):
    apply_checks()

    assert [each.span() for each in interpolate.get_matches(text)] == [
        each.span() for each in KEYCRE.finditer(text)
    ]


@pytest.mark.parametrize("text", ["${" * 1_000_000, "${" + " " * 2_000_000, "${" * 500_000 + "\n}"])
def test_string_with_a_million_unclosed_braces_is_read_at_once(text):
    """DVC would search each to the end of the string, for hours."""
    apply_checks()

    assert Context({}).resolve_str(text) == text
    assert snapshot.interpolate(text, {}) in {text, snapshot.ABSENT}
