"""Check the rules of prose, imports, dependencies and pages: ``python tests/lint``.

Print a line for each place that breaks a rule, and exit with 1 if there is one. Neither torch nor Prefect nor
DVC is imported.
"""

import gc
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "shared"), str(HERE)]

from rules import RULES, check  # noqa: E402  after the path of the modules
from source_tree import SourceTree  # noqa: E402


def main() -> int:
    """Check the repository, and return the exit code."""
    gc.disable()  # it would take as long as the rest, for syntax trees that are all in use
    tree = SourceTree.read()
    lines = list(check(tree))
    summary = f"{len(RULES)} rules, {len(tree.files)} files, {len(lines)} findings"
    sys.stdout.write("\n".join([*lines, summary]) + "\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
