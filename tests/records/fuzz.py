"""Reads spoilt files of every form, and reports each that does more harm than a `RecordError`.

    python tests/records/fuzz.py --count 200000 --seed 0 --jobs 2 --out /tmp/findings
    python tests/records/fuzz.py --seed 0 --replay 1234 --out /tmp/findings

A file must be refused with a `RecordError`, or load and come back equal after it is encoded again. Reading
must not take more memory than twice the file's honest size (its own, or what it inflates to) and 64 MB, nor
more than 5 seconds. Each job is a child that goes on until a file kills it; then a new one goes on.
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
    """What was seen of one form."""

    files: int = 0
    refused: int = 0
    loaded: int = 0
    slowest: float = 0.0
    highest: int = 0
    findings: list = field(default_factory=list)

    def add(self, row):
        """Count one file's *row*."""
        self.files += 1
        self.refused += row["outcome"] == "refused"
        self.loaded += row["outcome"] == "loaded"
        self.slowest = max(self.slowest, row["seconds"])
        self.highest = max(self.highest, row["grown"])
        if row["finding"]:
            self.findings.append(row)


def main():
    """Run the job that the command line asks for; exit code 1 where there are findings."""
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
    """What is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large-every", type=int, default=LARGE_EVERY, help="one file in so many is large")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--replay", type=int, help="the index of one file, which is read alone")
    parser.add_argument("--out", type=Path, help="a folder for the files that were found harmful")
    parser.add_argument(
        "--child", type=lambda text: [int(part) for part in text.split(",")], help=argparse.SUPPRESS
    )
    return parser.parse_args()


def job(asked, indices):
    """The rows of all *indices*, whatever becomes of the children that read them."""
    rows = []
    while len(rows) < len(indices):
        rest = indices[len(rows) :]
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        got, ending = child(asked, [rest[0], rest[-1] + 1, step])
        rows += got
        if len(rows) < len(indices):  # the child is dead, by the file that comes after its last row
            index = indices[len(rows)]
            form = case(asked.seed, index, asked.large_every).form.name
            rows.append(
                {
                    "index": index,
                    "form": form,
                    "outcome": "died",
                    "seconds": 0.0,
                    "grown": 0,
                    "finding": f"the reader died or hung: {ending}",
                }
            )
    return rows


def child(asked, span):
    """The rows that one child gives before its end, and its last words."""
    series = ["--seed", str(asked.seed), "--large-every", str(asked.large_every)]
    command = [sys.executable, __file__, *series, "--child", ",".join(map(str, span))]
    # large blocks go back to the system at once, so that what a file needs is seen in full
    environment = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
    return rows, f"exit {done.returncode}: {done.stderr[-2000:]}"


def say(line):
    """Print *line*."""
    sys.stdout.write(line + "\n")


def report(tallies, asked):
    """Print a line for each form, then each finding, and save its file under ``--out``."""
    head = ("form", "files", "refused", "loaded", "findings", "slowest s", "highest MB")
    say("{:<14}{:>9}{:>9}{:>9}{:>10}{:>11}{:>12}".format(*head))
    for name, one in sorted(tallies.items()):
        numbers = f"{one.files:>9}{one.refused:>9}{one.loaded:>9}{len(one.findings):>10}"
        say(f"{name:<14}{numbers}{one.slowest:>11.2f}{one.highest / 1e6:>12.1f}")
    series = f"--seed {asked.seed} --large-every {asked.large_every}"
    found = [(name, row) for name, one in sorted(tallies.items()) for row in one.findings]
    for name, row in found:
        say(f"\n{series} --replay {row['index']} ({name}): {row['finding']}")
        if asked.out:
            asked.out.mkdir(parents=True, exist_ok=True)
            spoilt = case(asked.seed, row["index"], asked.large_every)
            (asked.out / f"{asked.seed}-{row['index']}{spoilt.form.suffix}").write_bytes(spoilt.data)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
