"""Interrupt and damage runs in many ways, and count the trials in which no progress was lost.

    python tests/crash/crash.py --jobs 2                     all parts, which takes hours
    python tests/crash/crash.py kills --count 100 --jobs 2   a part
    python tests/crash/crash.py kills --seed 0 --replay 17   one trial again

The files of a trial with a finding stay in ``--folder``.
"""

import argparse
import importlib
import signal
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
sys.path.append(str(HERE.parent / "shared"))
from report import SkippedError, table  # noqa: E402  found by the lines above

PARTS = {  # trials in a short and in a long series; 0: not in the short one
    "kills": (3, 1000),
    "stage_kills": (0, 1000),
    "caches": (0, 1000),
    "ranks": (0, 200),
    "resumes": (0, 200),
    "writer_kills": (4, 1000),
    "calls": (8, 100_000),
    "command_calls": (0, 100_000),
    "disk": (5, 300),
    "corruption": (50, 100_000),
    "concurrency": (2, 60),
    "experiments": (0, 60),
    "schedules": (0, 30),
    "servers": (0, 200),
    "sweeps": (0, 30),
    "stores": (6, 1000),
    "damage": (3, 120),
    "deletions": (4, 120),
}


def main():
    """Run the trials of the command line and return the exit code, 1 if there are findings."""
    asked = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (
            signal.getsignal(number) is signal.SIG_IGN
        ):  # as in a shell's background job; trials would inherit it
            signal.signal(number, signal.SIG_DFL)
    folder = Path(tempfile.mkdtemp(prefix="crash-", dir=asked.folder))
    findings = [report(part, asked, folder) for part in asked.parts or default_parts(asked)]
    return 1 if any(findings) else 0


def default_parts(asked):
    """Return the parts to run if none is named."""
    return [part for part, (short, _) in PARTS.items() if short or not asked.short]


def report(part, asked, folder):
    """Run the trials of *part*, print their table, and return the findings."""
    started = time.monotonic()
    asked.count = asked.only or max(1, PARTS[part][0 if asked.short else 1])
    own = folder / part
    own.mkdir()
    try:
        rows = importlib.import_module(part).run(asked, own, started + asked.seconds)
    except SkippedError as error:
        print_line(f"{part}: skipped, {error}\n")
        return []
    print_line(f"{part}: seed {asked.seed}, {time.monotonic() - started:.0f} seconds")
    for line in table(rows):
        print_line(line)
    print_line("")
    return [row.finding for row in rows if row.finding] if rows else [f"{part}: no trial was run"]


def print_line(line):
    """Print *line* at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def arguments():
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}. Default: all")
    parser.add_argument(
        "--count",
        type=int,
        dest="only",
        help="the number of trials of each part. Default: depends on the part",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="the time after which a part starts no trial. Default: unlimited",
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the trials. Default: 0")
    parser.add_argument("--jobs", type=int, default=1, help="the number of processes. Default: 1")
    parser.add_argument("--replay", type=int, help="the number of the only trial to run")
    parser.add_argument("--short", action="store_true", help="run a few trials of each important kind")
    parser.add_argument(
        "--folder",
        type=Path,
        help="the parent folder of the trials. Default: the temporary folder of the system",
    )
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(unknown)}. Use one of {', '.join(PARTS)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
