"""The command line of the programs that try random runs and projects, one for each seed."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from forked_programs import start_server, stop_server
from run_files import read_run_files
from templates import short

from stages.devices import prepare_portable


def find_changes(before, after):
    """Return the names of what differs."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def find_changed_files(before, after):
    """Return the names of the files that differ in two folders of runs."""
    return find_changes(read_run_files(before), read_run_files(after))


def read_seeds(description, count):
    """Return the seeds that the command line asks for, by default the first *count*."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--count", type=int, default=count, help=f"number of seeds; default {count}")
    parser.add_argument("--seed", type=int, default=1, help="the first one; default 1")
    options = parser.parse_args()
    return range(options.seed, options.seed + options.count)


def try_seeds(seeds, what, try_seed):
    """Try *seeds*, print what is wrong with the *what* of each, and return whether anything is.

    *try_seed* receives a seed and a folder of its own, and returns what is wrong, if anything.
    """
    wrong = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            if problems := try_seed(seed, Path(folder)):
                wrong += 1
                print(seed, *problems, sep="\n", flush=True)  # noqa: T201
    print(f"{len(seeds)} {what}, {wrong} with a problem")  # noqa: T201
    return bool(wrong)


def try_projects(description, what, count, prepare):
    """Do what `try_seeds` does, with the seeds of the command line, in copies of a project.

    *prepare* receives the project and a folder for all seeds, and returns the function that tries one.
    """
    seeds = read_seeds(description, count)
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare_portable()  # forks inherit it
    start_server()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name, "prefect")
        home.mkdir()
        is_wrong = try_seeds(seeds, what, prepare(short(Path(name, "template"), home), Path(name)))
    stop_server()
    return is_wrong
