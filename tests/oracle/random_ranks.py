"""Random runs of the library on two or three ranks, and what must hold for each of them.

    python tests/oracle/random_ranks.py --count 100 --seed 1

The runs are those of `random_learners.py`, with the strategy ddp or fsdp. A run that is stopped some times,
and continued by new processes, leaves the files of one that is not. In half of the runs each rank computes
what one process would of its samples, and the history is that of one process, to rounding. A run that is
refused with a `BuilderError` is not tried further.
"""

import math
import os
import random
import sys

import torch
from random_learners import train
from ranks import run_ranks
from seeds import find_changed_files, read_seeds, start_server, stop_server, try_seeds

from stages.contracts.errors import BuilderError
from stages.distributed import rank_group

MAX_GAP = 2
STRATEGIES = ("ddp", "fsdp")
SAME_ON_EACH_RANK = {"drawing": False}
"""Draws of a hook that would change the weights of each rank in its own way."""
ARRANGED = ("own", "list", "torch", "shuffled", "sampler", "generator", "weighted", "stream")
"""Loaders whose batches do not depend on the number of ranks."""
SEPARATE = ("plain", "layer norm", "spectral norm")
"""Models that compute each sample on its own."""
SMOOTH = (
    "adamw",
    "sgd",
    "adagrad",
    "groups",
    "scheduled groups",
    "torch's adam",
    "torch's fused adam",
    "torch's amsgrad",
    "torch's groups",
)
"""Optimizers that do not enlarge a rounding error to a step of another sign."""
TOLERANCE = 1e-4


def draw_comparable(r):
    """Return draws of a run that computes on each rank what one process would."""
    drawn = {"model": r.choice(SEPARATE), "optimizer": r.choice(SMOOTH)}
    drawn |= {f"{split} loader": r.choice(ARRANGED) for split in ("train", "valid")}
    return drawn | {
        "train noise": False,
        "valid noise": False,
        "dropout": 0.0,
        "logs": False,
        "precision": "f32",
    }


def train_on_rank(seed, folder, stop, fixed):
    """Train on this rank; return the history, None if the run stopped or was refused, and the draws."""
    torch.set_num_threads(1)
    rank_group.MAX_GAP = MAX_GAP
    is_main = os.environ["RANK"] == "0"
    try:
        learner, drawn = train(seed, folder, stop if is_main else None, fixed=fixed)
    except BuilderError as error:
        return str(error), None
    return learner and read_history(learner), drawn


def read_history(learner):
    """Return the values of each metric by split and name."""
    return {
        f"{split} {name}": [*column.values] for (split, name), column in learner.history.columns().items()
    }


def try_ranks(seed, folder):
    """Return what is wrong with the run of *seed* on ranks, in *folder*, if anything."""
    r = random.Random(-seed)  # noqa: S311
    ranks, is_comparable = r.choice([2, 2, 3]), r.random() < 0.5
    fixed = SAME_ON_EACH_RANK | (draw_comparable(r) if is_comparable else {})
    on_ranks = {**fixed, "strategy": r.choice(STRATEGIES)}
    history, drawn = run_ranks(train_on_rank, ranks, seed, folder / "whole", None, on_ranks)[0]
    if drawn is None:
        return []
    stops = [(r.randint(1, 12), False) for _ in range(r.choice([1, 2, 3]))]
    for stop in (*stops, None):
        continued, _ = run_ranks(train_on_rank, ranks, seed, folder / "parts", stop, on_ranks)[0]
        if continued is not None:
            break
    differing = find_changed_files(folder / "whole", folder / "parts")
    problems = [f"{name} differs after the stops {stops}" for name in differing]
    problems += [] if repr(continued) == repr(history) else ["the history differs after the stops"]
    if is_comparable:
        learner, _ = train(seed, folder / "one", fixed=fixed)
        problems += [
            f"{name} is not that of one process" for name in find_gaps(read_history(learner), history)
        ]
    return [*problems, drawn] if problems else []


def find_gaps(one, other):
    """Return the names of the metrics whose values differ by more than rounding."""
    return [
        name
        for name in sorted({*one, *other})
        if len(one.get(name, ())) != len(other.get(name, ()))
        or not all(
            math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
            for a, b in zip(one[name], other[name], strict=True)
        )
    ]


if __name__ == "__main__":
    start_server()
    is_wrong = try_seeds(read_seeds(__doc__, 100), "runs on ranks", try_ranks)
    stop_server()
    sys.exit(is_wrong)
