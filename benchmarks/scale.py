"""Costs that must not grow with size, each as a ratio or a slope.

    python benchmarks/scale.py [--only load-data]

Each measurement is a generator of rows; add yours to `MEASUREMENTS`. Needs Linux: peaks are read from /proc.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from many_runs import ROOT, make_runs

LOAD_DATA = """
import sys
from pathlib import Path
from stages.load_data import LoadDataConfig, Paths, load_data
load_data(LoadDataConfig(source={"kind": "npz", "path": sys.argv[1]}), Paths(Path(sys.argv[2])))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
IMAGE = (3, 64, 64)


@dataclass(frozen=True)
class Row:
    """One measurement and its ratio."""

    size: str
    value: str
    ratio: float
    limit: float


def load_data_peak() -> Iterator[Row]:
    """Yield the peak memory of load-data above that with a tiny archive, as a multiple of the data."""
    with tempfile.TemporaryDirectory() as folder:
        base = load_data_bytes(Path(folder), 100, np.dtype(np.uint8))
        for count, dtype in (
            (10_000, np.uint8),
            (20_000, np.uint8),
            (5_000, np.float32),
            (5_000, np.float64),
        ):
            size = count * int(np.prod(IMAGE)) * np.dtype(dtype).itemsize
            peak = load_data_bytes(Path(folder), count, np.dtype(dtype)) - base
            yield Row(f"{size / 1e6:.0f} MB of {np.dtype(dtype)}", f"{peak / 1e6:.0f} MB", peak / size, 1.2)


def load_data_bytes(folder: Path, count: int, dtype: "np.dtype[np.generic]") -> int:
    """Return the peak memory of a process that runs load-data on *count* random images."""
    inputs = np.random.default_rng(0).integers(0, 256, (count, *IMAGE), dtype=np.uint8).astype(dtype)
    np.savez(folder / "data.npz", inputs=inputs, targets=np.arange(count) % 10)
    command = [sys.executable, "-c", LOAD_DATA, str(folder / "data.npz"), str(folder / "prepared")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  this Python
    return int(done.stdout) * 1024


def compare_seconds() -> Iterator[Row]:
    """Yield the CPU time of `learner compare` per run, of each further run, and of 1,000 runs to 6 s."""
    seconds = {count: min(timed_compare(count)) for count in (10, 100, 1000)}
    for count, total in seconds.items():
        per_run = total / count
        yield Row(f"{count} runs", f"{1000 * per_run:.1f} ms/run", per_run / (seconds[10] / 10), 1.0)
    slopes = [(seconds[b] - seconds[a]) / (b - a) for a, b in ((10, 100), (100, 1000))]
    yield Row("run 101 to 1,000", f"{1000 * slopes[1]:.1f} ms/run", slopes[1] / slopes[0], 1.5)
    yield Row("1,000 runs of 6 s", f"{seconds[1000]:.1f} s", seconds[1000] / 6, 1.0)


def timed_compare(count: int, rounds: int = 3) -> Iterator[float]:
    """Yield the CPU time of `learner compare` for *count* experiments; a busy machine changes it little."""
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), count, epochs=20, batches=45)
        for _ in range(rounds):
            start = os.times()
            learner(folder, "compare")
            end = os.times()
            yield end.children_user + end.children_system - start.children_user - start.children_system


def page_bytes() -> Iterator[Row]:
    """Yield the kB that each run of 1,000 epochs adds to the page of `learner compare --html`."""
    sizes = []
    for count in (2, 6):
        with tempfile.TemporaryDirectory() as folder:
            make_runs(Path(folder), count, epochs=1000, batches=45)
            learner(folder, "compare", "--html", "page.html")
            sizes.append((Path(folder) / "page.html").stat().st_size)
    each = (sizes[1] - sizes[0]) / 4 / 1000
    yield Row("1,000 epochs", f"{each:.1f} kB/run", each / 30, 1.0)


def learner(folder: str, *arguments: str) -> None:
    """Run ``learner`` in *folder*, with the code beside this file."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pipeline", *arguments]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)  # noqa: S603  this Python


MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "load-data": load_data_peak,
    "compare": compare_seconds,
    "page": page_bytes,
}


def main() -> None:
    """Print a table of all measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=MEASUREMENTS, help="one measurement")
    options = parser.parse_args()
    print(f"{'measurement':<12} {'size':<20} {'value':>10} {'ratio':>7} {'limit':>7}")
    for name, measure in MEASUREMENTS.items():
        if options.only in {None, name}:
            for row in measure():
                print(f"{name:<12} {row.size:<20} {row.value:>10} {row.ratio:>7.2f} {row.limit:>7.2f}")


if __name__ == "__main__":
    main()
