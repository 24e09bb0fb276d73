"""``learner`` and ``python -m pipeline``."""

import sys

from pipeline.collision import find_hidden_stages

USAGE_ERROR = 2


def main() -> None:
    """Run the command line, unless another package hides the one that it imports."""
    collision = find_hidden_stages()
    if collision:
        sys.stderr.write(f"error: {collision}\n")
        sys.exit(USAGE_ERROR)
    from pipeline.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
