"""The command line of the programs that try random projects, one for each seed."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from forked_programs import start_server, stop_server
from templates import short

from stages.devices import prepare_portable


def find_changes(before, after):
    """Return the names of what differs."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def try_seeds(description, what, count, prepare):
    """Try *count* seeds, or as many as asked for, print what is wrong, and return whether anything is.

    *prepare* receives the project to copy and a folder for all seeds. It returns the function that receives a
    seed and a folder of its own, and returns what is wrong with the *what* of the seed, if anything.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--count", type=int, default=count, help=f"number of seeds; default {count}")
    parser.add_argument("--seed", type=int, default=1, help="the first one; default 1")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare_portable()  # forks inherit it
    start_server()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        home = Path(name, "prefect")
        home.mkdir()
        try_seed = prepare(short(Path(name, "template"), home), Path(name))
        for seed in range(options.seed, options.seed + options.count):
            with tempfile.TemporaryDirectory(dir=name) as folder:
                if problems := try_seed(seed, Path(folder)):
                    wrong += 1
                    print(seed, *problems, sep="\n", flush=True)  # noqa: T201
    stop_server()
    print(f"{options.count} {what}, {wrong} with a problem")  # noqa: T201
    return bool(wrong)
