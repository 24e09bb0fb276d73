"""``python -m pipeline.sweeping.attempt``: `dvc exp run`, in a process that goes when its starter goes.

DVC's death is what a stage listens to (`pipeline.orphans`): it saves then, and leaves.
"""

import sys
from collections.abc import Sequence

from dvc.cli import main

from pipeline.orphans import leave_with_parent


def run_attempt(parent: int, arguments: Sequence[str]) -> int:
    """Run `dvc exp run` with *arguments* here, as long as the process *parent* is there; its exit code."""
    leave_with_parent(parent)
    return int(main(["exp", "run", *arguments]))


if __name__ == "__main__":
    sys.exit(run_attempt(int(sys.argv[1]), sys.argv[2:]))
