"""Every command that the README shows is run by a test: here, or where the table says."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MNIST = ROOT.parent / "shared" / "mnist"
README = (ROOT / "README.md").read_text()
ELSEWHERE = {
    "Compare": "pipeline/comparison/test_compare.py::test_every_command_of_the_readmes_section_runs",
    "Sweep": "pipeline/sweep/test_sweep.py::test_every_sweep_of_the_readme_is_one",
    "On a schedule": (
        "pipeline/test_serve.py::test_runs_in_the_workspace_wait_are_cancelled_retried_and_shown"
    ),
    "Share": "pipeline/test_share.py::test_a_fresh_clone_gets_model_and_experiments_from_s3_and_goes_on",
    "Is all well?": "pipeline/test_doctor.py::test_where_all_is_well_it_says_so_and_ends_with_0",
    "Your own model and data": (
        "pipeline/test_init.py::test_an_experiment_and_compare_work_right_after_init"
    ),
}
HERE = {"Two commands", "Kill it", "Records", "Real MNIST", "Speed"}


def commands():
    """The commands of each section, as they are typed."""
    sections = re.split(r"^##+ (.+)$", README, flags=re.MULTILINE)[1:]
    found = {}
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        typed = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
        if typed:
            found[title] = typed
    return found


def run(project, typed, *more, **changed):
    """Run what is *typed*, with words *changed*; what it printed."""
    words = [changed.get(word, word) for word in shlex.split(typed, comments=True)]
    if words[0] == "learner":
        words[:1] = ["python", "-m", "pipeline"]
    return project.ok(*words, *more)


def test_every_section_with_commands_is_run_here_or_by_the_test_that_is_named():
    assert set(commands()) == HERE | set(ELSEWHERE)
    for name in ELSEWHERE.values():
        path, _, test = name.partition("::")
        assert f"\ndef {test}(" in (ROOT / "tests" / path).read_text(), name


def test_the_commands_of_the_first_screens_and_of_records_run(finished):
    make_repro, make_test, again, experiment, *rest = commands()["Two commands"]
    assert make_repro.startswith("make repro ")
    assert make_test.startswith("make test ")  # which is what runs this

    assert "Running" not in run(finished, again)
    shown = run(finished, experiment, "-n", "other", **{"fit.num_epochs=30": "fit.num_epochs=3"})
    assert "epoch 3/3" in shown
    for typed in rest:
        run(finished, typed)

    *repros, resume = commands()["Kill it"]
    assert set(repros) == {"dvc repro"}
    changed = {"exp-name": "other", "5": "2", "fit.num_epochs=30": "fit.num_epochs=3"}
    assert "goes on after epoch 2" in run(finished, resume, **changed)

    for typed in commands()["Records"]:
        run(finished, typed)


@pytest.mark.long
@pytest.mark.skipif(not MNIST.is_dir(), reason="the files of MNIST are not here")
def test_real_mnist_trains(project):
    (project.folder.parent / "shared").symlink_to(MNIST.parent)
    [typed] = commands()["Real MNIST"]

    quick = {"fit.num_epochs=3": "fit.num_epochs=1", "fit.batch_size=64": "fit.batch_size=256"}

    shown = run(project, typed, **quick)

    assert float(re.search(r"valid: Accuracy ([\d.]+)", shown)[1]) >= 90


def test_the_benchmark_of_the_loop_runs(project):
    shutil.copytree(ROOT / "benchmarks", project.folder / "benchmarks")
    loop, _ = commands()["Speed"]

    assert "null-64" in run(project, loop, "--rounds", "1", "--steps", "10", "--only", "null-64")


@pytest.mark.long
def test_the_benchmark_of_records_runs(project, tmp_path):
    shutil.copytree(ROOT / "benchmarks", project.folder / "benchmarks")
    _, records = commands()["Speed"]
    memory = records.split()[-1]

    run(project, records, "--rounds", "1", "--megabytes", "2", **{memory: str(tmp_path)})
