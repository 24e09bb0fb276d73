"""The mutation program: its changes, the draw of mutants, and its report."""

import json
import os
import signal
import subprocess
import sys

import pytest
from baseline import Baseline
from catalog import draw, find_mutants
from copies import Copies
from packages import PACKAGES, ROOT
from results import Equivalents, Results, score

PROGRAM = ROOT / "tests/mutation/mutants.py"


@pytest.fixture
def mutants_of(tmp_path):
    """A function that returns the mutants of some source."""

    def mutants_of(source):
        (tmp_path / "module.py").write_text(source)
        return find_mutants(tmp_path, "module.py")

    return mutants_of


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("def f(a):\n    return a + 1\n", "return a - 1"),
        ("def f(a):\n    return a < 1\n", "return a <= 1"),
        ("def f(a):\n    if a:\n        return 1\n", "if not (a):"),
        ("def f(a):\n    a.flush()\n", "pass"),
        ("def f(a):\n    return g(a, b=1)\n", "return g(a, )"),
        ("@property\ndef f(a):\n    return a is None\n", "return a is not None"),
        ("class A:\n    rate: float = 0.5\n", "rate: float = 1.5"),
    ],
)
def test_behavior_is_mutated(mutants_of, source, change):
    assert change in [each.after for each in mutants_of(source)]


@pytest.mark.parametrize(
    "source",
    [
        'def f(a: "A | B" = ...) -> "C":\n    """Return."""\n',
        "if TYPE_CHECKING:\n    limit = 1\n",
        "@overload\ndef f(a):\n    return 1\n",
        'def f():\n    raise ValueError("a" f"b")\n',
        'def f():\n    log.warning("a %s")\n',
        'log = getLogger("a")\n',
        "def f():\n    return zip(strict=True)\n",
        "Handler = Callable[[int, Any], Any]\n",
    ],
)
def test_code_without_behavior_is_not_mutated(mutants_of, source):
    assert mutants_of(source) == []


def test_mutant_changes_one_place_of_its_file(mutants_of):
    source = "def f(a):\n    return a + 1\n\n\ndef g(a):\n    return a + 1\n"

    changed = {each.apply(source) for each in mutants_of(source) if each.function == "g"}

    assert "def f(a):\n    return a + 1\n\n\ndef g(a):\n    return a - 1\n" in changed
    assert all(each.startswith("def f(a):\n    return a + 1\n") for each in changed)


def test_edit_of_one_function_keeps_keys_of_others(mutants_of):
    before, after = (
        [each.key for each in mutants_of(f"{f}\n\ndef g(b):\n    return b * 2\n") if each.function == "g"]
        for f in ("def f(a):\n    return a + 1\n", "def f(a):\n    a = 3\n    return a\n")
    )

    assert before == after != []


def test_default_of_parameter_is_covered_by_body_of_its_function(mutants_of):
    mutant = mutants_of("def f(a, b=1):\n    c(a)\n    return b\n\n\ndef g(a):\n    return a\n")[0]

    assert (mutant.after, mutant.lines) == ("def f(a, b=2):", (1, 3))


def test_constant_is_tested_by_every_test_that_time_allows(mutants_of):
    cpu_and_lines = {"a::1": (2.0, {}), "b::1": (3.0, {"module.py": [7]}), "b::2": (1.0, {})}
    tests = {name: {"cpu": cpu, "lines": lines} for name, (cpu, lines) in cpu_and_lines.items()}

    assert Baseline(tests, [], []).covering(mutants_of("limit = 1\n")[0]) == ["b::2", "a::1", "b::1"]


@pytest.mark.long  # test_edit_of_one_function_keeps_keys_of_others
def test_draw_is_proportional_to_files_and_repeatable():
    mutants = [each for file in PACKAGES["runs"].files(ROOT)[:4] for each in find_mutants(ROOT, file)]
    drawn = draw(mutants, 20)

    assert len(drawn) == 20
    assert drawn == draw(mutants, 20)
    for file in {each.file for each in mutants}:
        share = 20 * sum(each.file == file for each in mutants) / len(mutants)
        assert abs(sum(each.file == file for each in drawn) - share) < 1


def test_every_module_to_mutate_exists():
    assert all((ROOT / file).is_file() for package in PACKAGES.values() for file in package.files(ROOT))
    assert all((ROOT / path).exists() for package in PACKAGES.values() for path in package.tests)


def test_truncated_line_of_results_is_dropped(tmp_path):
    path = tmp_path / "results"
    path.write_text('{"key": "a", "digest": "1", "outcome": "killed"}\n{"key": "b", "dig')

    Results(path).add({"key": "c", "digest": "1", "outcome": "survived"})

    assert list(Results(path).rows) == ["a", "c"]


def test_outcomes_count_only_for_same_code_and_tests(tmp_path, mutants_of):
    mutant = mutants_of("limit = 1\n")[0]
    results = Results(tmp_path / "results")
    results.add({"key": mutant.key, "digest": "old", "outcome": "killed"})

    assert results.find(mutant, "old")
    assert results.find(mutant, "new") is None
    assert results.find(mutant, "new", trust_kills=True)


def test_equivalent_mutants_are_excluded_from_score(mutants_of):
    killed, survived, explained = mutants_of("a = 1\nb = 2\n")[:3]
    fields = {name: getattr(explained, name) for name in ("file", "function", "before", "after")}
    outcomes = [(killed, "killed"), (survived, "survived"), (explained, "survived")]
    rows = [(mutant, {"outcome": outcome, "seconds": 1.0}) for mutant, outcome in outcomes]

    assert score("a", rows, Equivalents((fields,))).percent == 50


@pytest.mark.long
def test_every_equivalent_mutant_exists_and_has_a_reason():
    entries = Equivalents.read().entries
    found = [each for file in {entry["file"] for entry in entries} for each in find_mutants(ROOT, file)]

    assert Equivalents(entries).unknown(found) == []
    assert all(len(entry["reason"]) > 20 for entry in entries)
    assert {entry["file"] for entry in entries} == {each.file for each in found}


TINY = {
    "stages/optim/clamp.py": "def clamp(a):\n    if a > 3:\n        return 3\n    return a\n",
    "tests/optim/test_clamp.py": "from stages.optim.clamp import clamp\n\n\n"
    "def test_large_values_are_cut():\n    assert clamp(5) == 3\n    assert clamp(4) == 3\n",
    "tests/learner/test_nothing.py": "",
    "tests/conftest.py": "",
    "stages/__init__.py": "",
    "stages/optim/__init__.py": "",
    "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
    ".gitignore": "build/\n__pycache__/\n",
}


@pytest.fixture
def tiny(tmp_path):
    """A project of one function, with a copy of the program in it."""
    folder = tmp_path / "project"
    for name, content in TINY.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    for path in Copies(ROOT, tmp_path).names("tests/mutation"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((ROOT / path).read_bytes())
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def command(folder, *options):
    return [sys.executable, folder / "tests/mutation/mutants.py", "optim", *options]


def run(folder, *options):
    return subprocess.run(command(folder, *options), capture_output=True, text=True, check=False)


def rows(folder):
    lines = (folder / "build/mutants/results.jsonl").read_text().splitlines()
    return {row["after"]: row["outcome"] for row in map(json.loads, lines)}


@pytest.mark.long  # the tests of the outcomes
def test_run_reports_survivors_and_does_not_change_project(tiny):
    done = run(tiny, "--least", "99")

    assert done.returncode == 1, done.stderr
    assert rows(tiny)["if not (a > 3):"] == "killed"
    assert rows(tiny)["if a > 4:"] == "killed"
    assert "+ if a >= 3:" in done.stdout.partition("survived, 1 tests")[2]
    assert (tiny / "stages/optim/clamp.py").read_text() == TINY["stages/optim/clamp.py"]


@pytest.mark.long
def test_mutant_that_breaks_import_of_conftest_is_killed(tiny):
    (tiny / "stages/optim/limits.py").write_text('LIMIT = int("3")\n')
    (tiny / "tests/conftest.py").write_text("from stages.optim.limits import LIMIT\n")

    run(tiny)

    assert rows(tiny)["LIMIT = int(None)"] == "killed"


@pytest.mark.long
def test_killed_run_resumes_at_next_mutant(tiny):
    started = subprocess.Popen(
        command(tiny), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    for line in started.stdout:
        if line.startswith("  1/"):
            os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()

    kept, done = rows(tiny), run(tiny)

    assert f"{len(rows(tiny)) - len(kept)} to run" in done.stdout
    assert kept
    assert len(kept) < len(rows(tiny))
    assert run(tiny).stdout.count("0 to run") == 1
