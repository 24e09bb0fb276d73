"""Fuzzer that reads corrupt files of every format and reports each one that does not fail cleanly.

    python tests/records/fuzz.py --count 200000 --seed 0 --jobs 2 --out /tmp/findings
    python tests/records/fuzz.py --seed 0 --replay 1234 --out /tmp/findings

A file must be refused with a `RecordError`, or load and be restored equal after it is encoded again. Reading
must not need more memory than twice the file's actual size (its own, or its inflated content) and 64 MB, nor
more than 5 seconds. Each job is a child process; if a file terminates it, a new process continues.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from fuzz_child import run_cases
from fuzz_mutations import LARGE_EVERY, case


@dataclass
class Tally:
    """The results of one format."""

    files: int = 0
    refused: int = 0
    loaded: int = 0
    slowest: float = 0.0
    highest: int = 0
    findings: list = field(default_factory=list)

    def add(self, row):
        """Add the *row* of one file."""
        self.files += 1
        self.refused += row["outcome"] == "refused"
        self.loaded += row["outcome"] == "loaded"
        self.slowest = max(self.slowest, row["seconds"])
        self.highest = max(self.highest, row["grown"])
        if row["finding"]:
            self.findings.append(row)


def main():
    """Run the job of the command line and return the exit code: 1 if there are findings."""
    asked = arguments()
    if asked.child is not None:
        run_cases(asked, sys.stdout)
        return 0
    if asked.replay is not None:
        rows = job(asked, [asked.replay])
    else:
        parts = [list(range(start, asked.count, asked.jobs)) for start in range(asked.jobs)]
        with ThreadPoolExecutor(asked.jobs) as pool:
            rows = [row for part in pool.map(lambda part: job(asked, part), parts) for row in part]
    tallies = defaultdict(Tally)
    for row in rows:
        tallies[row["form"]].add(row)
    return report(tallies, asked)


def arguments():
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--large-every", type=int, default=LARGE_EVERY, help="make one of this many files large"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--replay", type=int, help="read only the file with this index")
    parser.add_argument("--out", type=Path, help="save the files of findings in this folder")
    parser.add_argument(
        "--child", type=lambda text: [int(part) for part in text.split(",")], help=argparse.SUPPRESS
    )
    return parser.parse_args()


def job(asked, indices):
    """Return the rows of all *indices*, even if child processes terminate."""
    rows = []
    while len(rows) < len(indices):
        rest = indices[len(rows) :]
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        got, ending = child(asked, [rest[0], rest[-1] + 1, step])
        rows += got
        if len(rows) < len(indices):  # the file after the last row terminated the child
            index = indices[len(rows)]
            form = case(asked.seed, index, asked.large_every).form.name
            rows.append(
                {
                    "index": index,
                    "form": form,
                    "outcome": "died",
                    "seconds": 0.0,
                    "grown": 0,
                    "finding": f"the reader crashed or timed out: {ending}",
                }
            )
    return rows


def child(asked, span):
    """Return the rows that one child process printed, and its exit code and errors."""
    series = ["--seed", str(asked.seed), "--large-every", str(asked.large_every)]
    command = [sys.executable, __file__, *series, "--child", ",".join(map(str, span))]
    # large blocks are returned to the system at once, so that the memory of each file is measured in full
    environment = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
    return rows, f"exit {done.returncode}: {done.stderr[-2000:]}"


def print_line(line):
    """Print *line*."""
    sys.stdout.write(line + "\n")


def report(tallies, asked):
    """Print one line per format, then each finding, and save its file under ``--out``."""
    head = ("form", "files", "refused", "loaded", "findings", "slowest s", "highest MB")
    print_line("{:<14}{:>9}{:>9}{:>9}{:>10}{:>11}{:>12}".format(*head))
    for name, one in sorted(tallies.items()):
        numbers = f"{one.files:>9}{one.refused:>9}{one.loaded:>9}{len(one.findings):>10}"
        print_line(f"{name:<14}{numbers}{one.slowest:>11.2f}{one.highest / 1e6:>12.1f}")
    series = f"--seed {asked.seed} --large-every {asked.large_every}"
    found = [(name, row) for name, one in sorted(tallies.items()) for row in one.findings]
    for name, row in found:
        print_line(f"\n{series} --replay {row['index']} ({name}): {row['finding']}")
        if asked.out:
            asked.out.mkdir(parents=True, exist_ok=True)
            corrupt = case(asked.seed, row["index"], asked.large_every)
            (asked.out / f"{asked.seed}-{row['index']}{corrupt.form.suffix}").write_bytes(corrupt.data)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
