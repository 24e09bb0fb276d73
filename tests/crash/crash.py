"""Breaks runs off in every way, and says in how many of so many trials nothing was lost.

    python tests/crash/crash.py --jobs 2                     all of it, which takes hours
    python tests/crash/crash.py kills --count 100 --jobs 2   a part
    python tests/crash/crash.py kills --seed 0 --replay 17   one trial, once more

What a trial left behind stays in ``--folder`` where something was wrong.
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
from report import SkippedError, table  # noqa: E402  found by the line above

PARTS = {  # how many trials in a short series, and in a long one; the short one leaves out what has none
    "kills": (3, 1000),
    "calls": (24, 100_000),
    "disk": (10, 300),
    "corruption": (300, 100_000),
    "concurrency": (2, 60),
    "experiments": (0, 60),
    "schedules": (0, 30),
    "sweeps": (0, 30),
    "stores": (12, 1000),
    "damage": (3, 120),
    "deletions": (7, 120),
}


def main():
    """Do the trials that the command line asks for; exit code 1 where there are findings."""
    asked = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # as of a shell's background; trials would inherit it
            signal.signal(number, signal.SIG_DFL)
    folder = Path(tempfile.mkdtemp(prefix="crash-", dir=asked.folder))
    findings = [finding for part in asked.parts or planned(asked) for finding in report(part, asked, folder)]
    for finding in findings:
        print_line(f"\n{finding}")
    return 1 if findings else 0


def planned(asked):
    """Return the parts to do if none is named."""
    return [part for part, (short, _) in PARTS.items() if short or not asked.short]


def report(part, asked, folder):
    """Do the trials of *part* and print their table; what was found."""
    begun = time.monotonic()
    asked.count = asked.only or max(1, PARTS[part][0 if asked.short else 1])
    own = folder / part
    own.mkdir()
    try:
        rows = importlib.import_module(part).run(asked, own, begun + asked.seconds)
    except SkippedError as error:
        print_line(f"{part}: skipped, {error}\n")
        return []
    print_line(f"{part}: seed {asked.seed}, {time.monotonic() - begun:.0f} seconds")
    for line in table(rows):
        print_line(line)
    print_line("")
    return [row.finding for row in rows if row.finding] if rows else [f"{part}: no trial was done"]


def print_line(line):
    """Print *line* at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def arguments():
    """What is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all, if none is named"
    )
    parser.add_argument(
        "--count", type=int, dest="only", help="trials of each part, instead of its own number"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="of a part, after which none begins"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--replay", type=int, help="the number of one trial, which is done alone")
    parser.add_argument("--short", action="store_true", help="few trials, of each kind that matters most")
    parser.add_argument("--folder", type=Path, help="where the trials are made")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}: {', '.join(PARTS)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
