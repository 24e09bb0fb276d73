"""The program for machines with a GPU runs its checks and prints its table on a CPU too."""

import importlib
import re
import tempfile

import pytest
import torch
from long_tests import long
from pages import ROOT
from projects import Project

BENCHMARKS = ROOT / "benchmarks"
TINY = ["--device", "cpu", "--quick"]


def run(*options):
    project = Project(BENCHMARKS, tempfile.gettempdir())
    return project.fork("gpu", *map(str, options))


@pytest.fixture
def gpu_checks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_checks")


@pytest.mark.long
def test_checks_pass_on_a_cpu_and_only_those_that_need_cuda_are_skipped(gpu_checks, tmp_path):
    out = tmp_path / "out.txt"

    finished = run(*TINY, "--check", "--out", out)

    results = dict(re.findall(r"^([\w-]+) +(ok|skipped|FAILED) ", finished.out, re.MULTILINE))
    assert finished.code == 0, finished.out + finished.err
    assert results.keys() == gpu_checks.CHECKS.keys()
    skipped = {name for name, result in results.items() if result == "skipped"}
    assert {name for name in skipped if not name.startswith(("captured-", "capture-", "steps-"))} == {
        "out-of-memory",
        "tf32-max-autotune",
        "two-fits",
        "visible-devices",
        "wrong-label",
    }
    assert out.read_text() == finished.out


@pytest.mark.parametrize("row", ["gpt2", long("gpt2-compiled")])
def test_table_has_a_line_for_each_loop(row):
    finished = run(*TINY, "--only", row)

    assert finished.code == 0, finished.err
    lines = re.findall(rf"^\| {row} \| [^|]+ \| \d+\.\d \| \d+ \|", finished.out, re.MULTILINE)
    assert len(lines) == 2
    assert re.search(r"\| \d+\.\d\d \| ≥ [\d.]+ \|", finished.out)


def test_row_in_progress_is_in_the_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    report = importlib.import_module("gpu").Report(tmp_path / "rows.md")

    report.write("finished")
    report.update(["first loop"])
    report.update(["first loop", "second loop"])

    assert (tmp_path / "rows.md").read_text() == "finished\nfirst loop\nsecond loop\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")
def test_machine_without_an_accelerator_is_reported_in_one_line():
    finished = run()

    assert (finished.code, finished.err) == (0, "")
    assert re.fullmatch("no accelerator found; .+\n", finished.out)


def test_check_fails_if_a_file_differs_or_is_missing(gpu_checks, tmp_path):
    (tmp_path / "a.log").write_text("1")

    assert gpu_checks.compare({"a.log": b"1"}, tmp_path)
    for expected in ({"a.log": b"2"}, {"a.log": b"1", "b.log": b""}, {}):
        with pytest.raises(gpu_checks.FailedError, match="files differ"):
            gpu_checks.compare(expected, tmp_path)


@pytest.mark.long  # the test before
def test_failed_check_sets_the_exit_code():
    finished = run("--device", "no device", "--quick", "--only", "repeat-mlp")

    assert finished.code == 1
    assert re.search(r"^repeat-mlp +FAILED .+ BuilderError: unknown device", finished.out, re.MULTILINE)
