"""The table of the results of trials."""

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """The result of one trial."""

    kind: str
    finding: str = ""
    """What is wrong; empty if nothing is."""
    counted: dict = field(default_factory=dict)
    """Further counts that the table sums."""

    def __post_init__(self):
        """Report the trial at once: the series may be stopped before its table."""
        sys.stderr.write(f"{self.kind}: {self.finding or 'survived'}\n")
        sys.stderr.flush()


class SkippedError(Exception):
    """Trials that this machine does not support; the message has the reason."""


def table(rows):
    """Yield a line for each kind of trial, and one for all."""
    kinds = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    yield f"{'trial':<46}{'survived':>15}   besides"
    for kind, own in [*sorted(kinds.items()), ("all", rows)]:
        well = sum(not row.finding for row in own)
        besides = sum((Counter(row.counted) for row in own), Counter())
        more = ", ".join(f"{number} {name}" for name, number in sorted(besides.items()))
        yield f"{kind:<46}{f'{well} of {len(own)}':>15}   {more}".rstrip()
