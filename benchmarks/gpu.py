"""The learner on a GPU: checks, then a table of its speed beside other loops.

    python benchmarks/gpu.py [--check] [--only NAME ...] [--out FILE]

The data is random, and nothing is downloaded. Each training and each loop runs in a process of its own. A
time is the median of 5 epochs after one to warm up; a ratio is the median of those of the rounds, in which
the loops run in turn. Host synchronizations are those that ``torch.cuda.set_sync_debug_mode`` reports. Of the
project only `stages` is imported, so neither Prefect nor DVC is needed. The exit code is 1 if a check failed.
"""

import argparse
import importlib.util
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_checks import CHECKS, CONTEXT, Setup, SkippedError, open_process, require, run_apart
from gpu_loops import Measurement, count_synchronizations, measure, release_memory

ROUNDS = 5
LAST_ROW_SECONDS = 330.0
"""No row starts later than this."""
NO_ACCELERATOR = "no accelerator found; run `benchmarks/gpu.py` on a machine that has one"
COLUMNS = (
    "case",
    "loop",
    "µs per step",
    "µs per step by CUDA events",
    "peak, MB",
    "host synchronizations per step",
    "the learner is × as fast",
    "goal",
    "remark",
)


@dataclass(frozen=True)
class Row:
    """A comparison of a loop of the learner with others."""

    goals: dict[str, float | None]
    """How many times as fast the learner must be, by the name of the other loop; None for no goal."""
    learner: str = "learner"
    feature: str | None = None
    """What the project must have for this row."""


SMALL: dict[str, float | None] = {"expert": None, "learner, eager steps": None}
ROWS = {
    "cnn-64": Row({**SMALL, "textbook": 5, "Lightning": 8, "expert, CUDA graph": 0.9}),
    "mlp-64": Row({**SMALL, "textbook": 6, "Lightning": 10, "expert, CUDA graph": 0.85}),
    "cnn-4096": Row({"expert": 1.0}),
    "validation": Row({"textbook, validation": 3}, "learner, validation"),
    "images-224": Row({"4 pinned workers": 1.5, "learner": 0.95}, "learner, prefetched"),
    "gpt2": Row({"nanoGPT": 0.97}),
    "gpt2-save": Row({"learner": 0.95}, "learner, saving", "stages.checkpoints.snapshot_writer"),
    "gpt2-compiled": Row({"nanoGPT": 0.97}),
}


@dataclass
class Result:
    """The measurements of a loop."""

    rounds: list[Measurement]
    synchronizations: float | None = None
    remark: str = ""
    """The reason for which it was not measured."""

    def cells(self, learner: "Result", goal: float | None) -> list[str]:
        """Return the cells of its line, without the names."""
        if self.remark or not self.rounds:
            return [""] * 6 + [self.remark]
        pairs = zip(self.rounds, learner.rounds, strict=False)
        ratio = [] if self is learner else [theirs.wall / ours.wall for theirs, ours in pairs]
        return [
            format_median([each.wall for each in self.rounds], ".0f"),
            format_median([each.device for each in self.rounds], ".0f"),
            format_median([each.peak for each in self.rounds], ".0f"),
            "" if self.synchronizations is None else f"{self.synchronizations:.2f}",
            format_median(ratio, ".2f"),
            "" if goal is None else f"≥ {goal}",
            self.rounds[-1].note or "",
        ]


def format_median(values: Sequence[float | None], form: str) -> str:
    """Return the median of *values*, or an empty string without values."""
    known = [value for value in values if value is not None]
    return format(statistics.median(known), form) if known else ""


def find_obstacle(loop: str, setup: Setup) -> str:
    """Return the reason for which *loop* cannot run here; empty if it can."""
    if loop == "Lightning" and not importlib.util.find_spec("lightning"):
        return "not installed"
    if "CUDA" in loop and not setup.device.startswith("cuda"):
        return "needs CUDA"
    return ""


def measure_row(name: str, setup: Setup) -> dict[str, Result]:
    """Return the result of each loop of the row *name*, the learner first."""
    row = ROWS[name]
    results = {loop: Result([], remark=find_obstacle(loop, setup)) for loop in (row.learner, *row.goals)}
    arguments = {"device_name": setup.device, "quick": setup.quick}
    with ExitStack() as stack:
        runs = {key: stack.enter_context(open_process()) for key in results if not results[key].remark}
        for turn in range(1 + (1 if setup.quick else ROUNDS)):
            for loop, process in runs.items():
                with collect_error(results[loop]):
                    measured = process.submit(measure, loop, name, **arguments).result()
                    process.submit(release_memory).result()
                    if turn:  # the first round warms up
                        results[loop].rounds.append(measured)
        for loop, process in runs.items():
            with collect_error(results[loop]):
                counted = process.submit(count_synchronizations, loop, name, **arguments).result()
                results[loop].synchronizations = counted
    return results


@contextmanager
def collect_error(result: Result) -> Iterator[None]:
    """Store an exception as the remark of *result*, so that the other loops are measured."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  any exception of a loop
        message = str(error).partition("\n")[0]
        result.remark = f"{type(error).__name__}: {message}"


def format_row(name: str, setup: Setup) -> list[str]:
    """Return the lines of the table for the row *name*."""
    row = ROWS[name]
    try:
        if row.feature:
            require(row.feature)
    except SkippedError as error:
        return [format_line([name, row.learner, *[""] * 6, str(error)])]
    results = measure_row(name, setup)
    return [
        format_line([name, loop, *result.cells(results[row.learner], row.goals.get(loop))])
        for loop, result in results.items()
    ]


def format_line(cells: Sequence[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def run_check(name: str, setup: Setup) -> tuple[bool, str]:
    """Return whether the check *name* did not fail, and its line."""
    start, passed, result = time.monotonic(), True, "ok"
    try:
        remark = CHECKS[name](setup)
    except SkippedError as error:
        result, remark = "skipped", str(error)
    except Exception as error:  # noqa: BLE001  an exception of a training fails its check; the others run
        passed, result, remark = False, "FAILED", f"{type(error).__name__}: {error}"
    return passed, f"{name:<20}{result:<9}{time.monotonic() - start:6.1f} s  {remark}"


def describe_machine(device: str) -> str:
    """Return the device and the versions."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    if not device.startswith("cuda"):
        return f"{device}, {versions}"
    driver = "unknown"
    if query := shutil.which("nvidia-smi"):
        options = ["--query-gpu=driver_version", "--format=csv,noheader"]
        printed = subprocess.run([query, *options], capture_output=True, text=True, check=False)  # noqa: S603
        driver = printed.stdout.strip().partition("\n")[0]
    return f"{torch.cuda.get_device_name(device)}, driver {driver}, CUDA {torch.version.cuda}, {versions}"


class Report:
    """Lines that are printed at once, and written to a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: list[str] = []

    def write(self, *lines: str) -> None:
        """Print *lines*."""
        self._lines += lines
        print(*lines, sep="\n", flush=True)
        if self._path:
            self._path.write_text("\n".join(self._lines) + "\n")


def run(options: argparse.Namespace, report: Report) -> bool:
    """Run the checks and print the table; return whether no check failed."""
    start, passed = time.monotonic(), True
    report.write(run_apart(describe_machine, options.device), "")
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(options.device, options.quick, Path(folder))
        for name in [name for name in CHECKS if not options.only or name in options.only]:
            result, line = run_check(name, setup)
            passed = passed and result
            report.write(line)
        rows = [name for name in ROWS if name in (options.only or ROWS) and not options.check]
        if rows:
            report.write("", format_line(COLUMNS), format_line(["---"] * len(COLUMNS)))
        for name in rows:
            if time.monotonic() - start > LAST_ROW_SECONDS:
                report.write(format_line([name, *[""] * 7, f"no time is left: use --only {name}"]))
            else:
                report.write(*format_row(name, setup))
    report.write("", f"{time.monotonic() - start:.0f} s")
    return passed


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Check and measure the learner on a GPU.")
    parser.add_argument("--check", action="store_true", help="Only run the checks. Default: no.")
    names = [*CHECKS, *ROWS]
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"Only these: {', '.join(names)}."
    )
    parser.add_argument("--out", type=Path, help="Write what is printed to this file too. Default: none.")
    parser.add_argument("--device", help="The device. Default: cuda:0.")
    parser.add_argument(
        "--quick", action="store_true", help="Use tiny sizes, to test this script. Default: no."
    )
    options = parser.parse_args()
    if options.device is None and not torch.cuda.is_available():
        print(NO_ACCELERATOR)
        return 0
    options.device = options.device or "cuda:0"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for the fork server
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking for a device then uses no CUDA before a fork
    CONTEXT.set_forkserver_preload(["gpu_checks", "torch._dynamo"])
    return 0 if run(options, Report(options.out)) else 1


if __name__ == "__main__":
    sys.exit(main())
