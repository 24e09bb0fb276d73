"""What to do about a NaN or infinity, as params say it."""

from typing import Literal

from stages.contracts.config import Config
from stages.contracts.fields import Count


class NonFinite(Config):
    """The rule for a loss or gradient that is not finite. Burn has none: there it reaches the weights."""

    kind: Literal["stop", "skip"] = "stop"
    """``stop``: the run ends. ``skip``: that batch changes nothing."""
    limit: Count = 10
    """The most batches that ``skip`` passes over in a row; one more ends the run."""
