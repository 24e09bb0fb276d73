"""Costs that must not grow with size, each as a ratio or a slope.

    python benchmarks/scale.py [--only load-data]

Each measurement is a generator of rows; add yours to `MEASUREMENTS`. Needs Linux: peaks are read from /proc.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import long_runs
import numpy as np

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


def costs_of(kind: str) -> Iterator[Row]:
    """Yield what epochs or steps of long runs cost against early ones, or the fsyncs for each log file."""
    if kind == "epochs":
        sizes = [100, 1_000, 5_000]
        costs = long_runs.epoch_costs(sizes)
        for size, cost in zip(sizes, costs, strict=True):
            yield Row(f"epoch {size:,}", f"{cost * 1e3:.1f} ms", cost / costs[0], 1.2)
    elif kind == "steps":
        costs = long_runs.step_costs(1_000_000)
        for name, cost in (("first tenth", costs[0]), ("last tenth", costs[-1])):
            yield Row(f"{name} of 10^6", f"{cost * 1e6:.0f} us", cost / costs[0], 1.2)
    else:
        for files in (100, 4_000):
            calls, seconds = long_runs.publishing_cost(files)
            yield Row(f"{files:,} log files", f"{seconds / files * 1e6:.0f} us", calls / files, 0.1)


MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "load-data": load_data_peak,
    "epochs": partial(costs_of, "epochs"),
    "steps": partial(costs_of, "steps"),
    "publish": partial(costs_of, "publish"),
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
