"""The learner on a GPU: checks, or a table of its speed beside other loops.

    python benchmarks/gpu.py --check [--jobs 6] [--out FILE]
    python benchmarks/gpu.py [--only NAME ...] [--out FILE]

The data is random, and nothing is downloaded. Each training and each loop runs in a process of its own. A
time is that from a step after the start (200 for the small models) to the end of an epoch, with the device
synchronized at both, and the median over the rounds, in which the loops run in turn; a ratio is the median of
those of the rounds. The exit code is 1 if a check failed.

Of the project only `stages` is imported. The program needs torch, numpy, msgpack, pydantic, isal,
lazy-loader, rich, psutil and packaging, and compares with Lightning if it is installed; it needs neither
Prefect nor DVC.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gpu_checks import ALONE, CHECKS, CONTEXT, Setup, SkippedError, open_process, run_apart
from gpu_loops import Measurement, measure, release_memory

ROW_LIMIT_SECONDS = 200.0

FIRST_ROWS_SECONDS = 290.0
"""No row starts later than this."""
NO_ACCELERATOR = "no accelerator found; run `benchmarks/gpu.py` on a machine that has one"
COLUMNS = (
    "case",
    "loop",
    "start, s",
    "µs per step",
    "reserved, MB",
    "learner is × as fast",
    "goal",
    "remark",
)


@dataclass(frozen=True)
class Row:
    """A comparison of a loop of the learner with others."""

    goals: dict[str, float | None]
    """How many times as fast the learner must be, by the name of the other loop; None for no goal."""
    learner: str = "learner"
    rounds: int = 3


SMALL: dict[str, float | None] = {"expert": None, "learner, eager steps": None}
ROWS = {
    "mlp-64": Row({"expert, CUDA graph": 0.9, "textbook": 5, **SMALL, "Lightning": None}),
    "cnn-64": Row({"expert, CUDA graph": 0.9, "textbook": 5, **SMALL, "Lightning": None}),
    "gpt2": Row({"nanoGPT": 0.98}, rounds=2),
    "gpt2-save": Row({"learner": 0.95}, "learner, saving", rounds=2),
    "gpt2-compiled": Row({"nanoGPT": 0.98}, rounds=2),
    "validation": Row({"textbook, validation": 3}, "learner, validation"),
    "images-224": Row({"4 pinned workers": 1.5, "learner": 0.95}, "learner, prefetched", rounds=2),
    "cnn-4096": Row({"expert": 1.0}, rounds=2),
}


@dataclass
class Result:
    """The measurements of a loop."""

    rounds: list[Measurement] = field(default_factory=list)
    remark: str = ""
    """The reason for which it was not measured."""

    def cells(self, learner: "Result", goal: float | None) -> list[str]:
        """Return the cells of its line, without the names."""
        if self.remark or not self.rounds:
            return [""] * 5 + [self.remark]
        pairs = zip(self.rounds, learner.rounds, strict=False)
        ratio = [] if self is learner else [theirs.step / ours.step for theirs, ours in pairs]
        return [
            format_median([measured.start for measured in self.rounds], ".1f"),
            format_median([measured.step for measured in self.rounds], ".0f"),
            format_median([measured.reserved for measured in self.rounds], ".0f"),
            format_median(ratio, ".2f"),
            "" if goal is None else f"≥ {goal}",
            self.rounds[-1].note or "",
        ]


def format_median(values: Sequence[float | None], form: str) -> str:
    """Return the median of *values*, or an empty string without values."""
    numbers = [value for value in values if value is not None]
    return format(statistics.median(numbers), form) if numbers else ""


def find_obstacle(loop: str, setup: Setup) -> str:
    """Return the reason for which *loop* cannot run here; empty if it can."""
    if loop == "Lightning" and not importlib.util.find_spec("lightning"):
        return "not installed"
    if "CUDA" in loop and not setup.device.startswith("cuda"):
        return "needs CUDA"
    return ""


def measure_row(name: str, setup: Setup, report: "Report") -> None:
    """Measure each loop of the row *name*, the learner first, and report the results after each."""
    row = ROWS[name]
    results = {loop: Result(remark=find_obstacle(loop, setup)) for loop in (row.learner, *row.goals)}
    loops = [loop for loop, result in results.items() if not result.remark]
    with ExitStack() as stack:
        runs = {loop: stack.enter_context(open_process(ROW_LIMIT_SECONDS)) for loop in loops}
        for process in [runs[loop].submit(release_memory) for loop in loops]:
            process.result()  # all have imported torch
        for turn in range(1 if setup.quick else row.rounds):
            for loop in loops:
                if results[loop].remark:
                    continue
                with collect_error(results[loop]):
                    measured = runs[loop].submit(measure, loop, name, setup.device, quick=setup.quick)
                    results[loop].rounds.append(measured.result())
                    runs[loop].submit(release_memory).result()
                    step = results[loop].rounds[-1].step
                    print(f"{name}, round {turn + 1}, {loop}: {step:.0f} µs per step", flush=True)
                report.update(format_row(row, name, results))
    report.write(*format_row(row, name, results))


def format_row(row: Row, name: str, results: dict[str, Result]) -> list[str]:
    """Return the lines of the table for the *results* of a row."""
    return [
        format_line([name, loop, *result.cells(results[row.learner], row.goals.get(loop))])
        for loop, result in results.items()
    ]


@contextmanager
def collect_error(result: Result) -> Iterator[None]:
    """Store an exception as the remark of *result*, so that the other loops are measured."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  any exception of a loop
        message = str(error).partition("\n")[0]
        result.remark = f"{type(error).__name__}: {message}"


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
    return passed, f"{name:<24}{result:<9}{time.monotonic() - start:6.1f} s  {remark}"


def run_checks(names: Sequence[str], setup: Setup, report: "Report", jobs: int) -> bool:
    """Run *jobs* checks at a time, and those that need the memory of the device alone after them.

    Return whether none failed.
    """
    passed = True
    for group in ([name for name in names if name not in ALONE], [name for name in names if name in ALONE]):
        with ThreadPoolExecutor(jobs if group and group[0] not in ALONE else 1) as pool:
            for future in as_completed([pool.submit(run_check, name, setup) for name in group]):
                is_passed, line = future.result()
                passed = passed and is_passed
                report.write(line)
    return passed


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
    """Lines that are printed at once and written to a file, which also has the row in progress."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: list[str] = []

    def write(self, *lines: str) -> None:
        """Print *lines*."""
        print(*lines, sep="\n", flush=True)
        self._lines += lines
        self.update([])

    def update(self, lines: Sequence[str]) -> None:
        """Replace the row in progress by *lines* in the file, which survives a kill."""
        if self._path:
            self._path.write_text("\n".join([*self._lines, *lines]) + "\n")


def run(options: argparse.Namespace, report: Report) -> bool:
    """Run the checks, or measure the rows; return whether no check failed."""
    start, passed = time.monotonic(), True
    report.write(run_apart(describe_machine, options.device), "")
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(options.device, options.quick, Path(folder))
        chosen = options.only or (CHECKS if options.check else ROWS)
        passed = run_checks([name for name in CHECKS if name in chosen], setup, report, options.jobs)
        rows = [name for name in ROWS if name in chosen]
        if rows:
            report.write(format_line(COLUMNS), format_line(["---"] * len(COLUMNS)))
        for name in rows:
            if time.monotonic() - start > FIRST_ROWS_SECONDS:
                report.write(format_line([name, *[""] * 6, f"no time is left: use --only {name}"]))
            else:
                measure_row(name, setup, report)
    report.write("", f"{time.monotonic() - start:.0f} s")
    return passed


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Check and measure the learner on a GPU.")
    parser.add_argument("--check", action="store_true", help="Run the checks. Default: measure the rows.")
    parser.add_argument("--jobs", type=int, help="Checks at a time. Default: 1 on a CPU, else up to 6.")
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
    options.jobs = options.jobs or (1 if options.device == "cpu" else min(6, (os.cpu_count() or 2) // 2))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for the fork server
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking for a device then uses no CUDA before a fork
    CONTEXT.set_forkserver_preload(["gpu_checks", "torch._dynamo"])
    return 0 if run(options, Report(options.out)) else 1


if __name__ == "__main__":
    sys.exit(main())
