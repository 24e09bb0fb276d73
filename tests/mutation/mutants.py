"""Change the code in one small place at a time and report the changes that no test detects.

    python tests/mutation/mutants.py --jobs 2               every package, a sample of its mutants
    python tests/mutation/mutants.py optim --count 40       one package, a smaller sample
    python tests/mutation/mutants.py optim --survivors      again those that survived, after tests were added
    python tests/mutation/mutants.py optim --replay 0f3a    one mutant, with the output of its tests

Mutants are made in copies below build/mutants; the repository is only read. If a run is stopped, the same
command resumes at the next mutant, as long as the code and the tests are the same. The exit code is 1 if a
package scores below ``--least``.
"""

import argparse
import json
import queue
import signal
import sys
import threading
from dataclasses import asdict
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from baseline import baseline_of  # noqa: E402  found by the line above
from catalog import draw, find_mutants  # noqa: E402
from copies import Copies  # noqa: E402
from packages import PACKAGES, ROOT  # noqa: E402
from results import CAUGHT, HEAD, Equivalents, Results, score  # noqa: E402
from worker import Worker  # noqa: E402

BUILD = ROOT / "build" / "mutants"
REPORTED = ("key", "file", "function", "operator", "before", "after")
SLACK = 10
"""A mutant may take this many times the unmutated time of its tests, because the machine may be busy."""
SLACK_SECONDS = 60


def main():
    """Run the mutants that the command line asks for."""
    asked = arguments()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs inherit an ignored one
    copies = Copies(ROOT, BUILD)
    copies.write(asked.jobs)
    results, equivalents = Results(BUILD / "results.jsonl"), Equivalents.read()
    scores = []
    for name in asked.packages or PACKAGES:
        everything = [each for file in PACKAGES[name].files(ROOT) for each in find_mutants(ROOT, file)]
        mutants = draw(everything, asked.count or PACKAGES[name].count)
        if asked.replay:
            replay(name, [each for each in everything if each.key.startswith(asked.replay)], copies)
            continue
        run(name, mutants, asked, copies, results)
        rows = [(each, results.rows[each.key]) for each in mutants]
        report_survivors(rows, equivalents)
        for entry in equivalents.unknown(everything):
            show(f"equivalents.toml names no mutant: {entry['file']} {entry['function']}: {entry['after']}")
        scores.append(score(name, rows, equivalents))
    for line in [HEAD, *(each.line() for each in scores)] if scores else []:
        show(line)
    (BUILD / "score.json").write_text(json.dumps([asdict(each) for each in scores], indent=1))
    return 1 if any(each.percent < asked.least for each in scores) else 0


def run(name, mutants, asked, copies, results):
    """Run those of *mutants*, drawn from package *name*, that have no outcome yet."""
    digest = copies.digest(PACKAGES[name].tests)
    left = [each for each in mutants if not results.find(each, digest, trust_kills=asked.survivors)]
    show(f"{name}: {len(mutants)} mutants, {len(left)} to run")
    if not left:
        return
    baseline = baseline_of(PACKAGES[name].tests, copies)
    for test in baseline.failed:
        show(f"  not used, because it fails or is skipped without a mutant: {test}")
    waiting, lock = queue.SimpleQueue(), threading.Lock()
    for number, mutant in enumerate(left, 1):
        waiting.put((number, mutant))

    def work(job):
        with Worker(copies.path(job), baseline.modules) as worker:
            while not waiting.empty():
                number, mutant = waiting.get()
                outcome = worker.ask(request_of(mutant, baseline, PACKAGES[name].test_seconds))
                row = {each: getattr(mutant, each) for each in REPORTED} | {"digest": digest} | outcome
                with lock:
                    results.add(row)
                    show(f"  {number}/{len(left)} {outcome['outcome']} {describe(mutant)}")

    run_threads([partial(work, job) for job in range(asked.jobs)])


def run_threads(targets):
    """Run *targets* at once and raise the first exception that one raises."""
    errors = []

    def run_until_error(target):
        try:
            target()
        except Exception as error:  # noqa: BLE001  raised below
            errors.append(error)

    threads = [threading.Thread(target=run_until_error, args=(each,), daemon=True) for each in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def request_of(mutant, baseline, test_seconds):
    """Return what a worker needs for *mutant*: its code, its tests in their order, and limits."""
    tests, seconds, cpu = [], 0.0, 0.0
    for test in baseline.covering(mutant):
        row = baseline.tests[test]
        if tests and cpu + row["cpu"] > test_seconds:
            break
        tests.append(test)
        seconds += row["seconds"]
        cpu += row["cpu"]
    return {
        "file": mutant.file,
        "code": mutant.apply((ROOT / mutant.file).read_text()),
        "tests": tests,
        "seconds": SLACK_SECONDS + SLACK * seconds,
        "cpu": int(SLACK_SECONDS / 3 + SLACK / 2 * cpu),
    }


def replay(name, mutants, copies):
    """Run *mutants* of package *name* and print the output of their tests."""
    baseline = baseline_of(PACKAGES[name].tests, copies)
    with Worker(copies.path(0), baseline.modules) as worker:
        for mutant in mutants:
            request = request_of(mutant, baseline, PACKAGES[name].test_seconds)
            show(
                f"{describe(mutant)}\n{len(request['tests'])} tests: {worker.ask(request)}\n{worker.output()}"
            )


def describe(mutant):
    """Return one line about *mutant*."""
    place = f"{mutant.key} {mutant.file}:{mutant.lines[0]} {mutant.function}"
    return f"{place}\n      - {mutant.before}\n      + {mutant.after}"


def report_survivors(rows, equivalents):
    """Print the mutants that survived and are not in the list of equivalents."""
    left = [
        (mutant, row) for mutant, row in rows if row["outcome"] not in CAUGHT and mutant not in equivalents
    ]
    for mutant, row in left:
        show(f"  {row['outcome']}, {row['tests']} tests: {describe(mutant)}")


def show(line):
    """Print *line* at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def arguments():
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "packages", nargs="*", metavar="package", help=f"one of {', '.join(PACKAGES)}. Default: all"
    )
    parser.add_argument(
        "--count", type=int, help="mutants to draw from each package. Default: depends on the package"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once; default: 1")
    parser.add_argument(
        "--survivors", action="store_true", help="trust kills of previous versions of the tests"
    )
    parser.add_argument(
        "--replay",
        metavar="KEY",
        help="run the mutants whose key starts with KEY, and print the output of their tests",
    )
    parser.add_argument("--least", type=float, default=85, help="score in percent to reach; default: 85")
    asked = parser.parse_args()
    if unknown := set(asked.packages) - set(PACKAGES):
        parser.error(f"no package is named {', '.join(unknown)}: {', '.join(PACKAGES)}")
    return asked


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again to resume")
