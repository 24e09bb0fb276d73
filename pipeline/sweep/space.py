"""The space of a search: the params that vary and their distributions, read from ``-S``.

The syntax is that of Hydra's sweeper for Optuna: ``interval(a,b)``, ``tag(log,interval(a,b))`` and
``int(interval(a,b))`` beside the lists, ``choice(…)`` and ``range(…)`` of a grid. A list or a range has the
same values as in a grid.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pipeline.sweep.plan import Point, parse_overrides
from stages.contracts.errors import ParamsError

DIGITS_IN_NAMES = 4
"""Significant digits of a real number in the name of an experiment; its params have all digits."""


@dataclass(frozen=True)
class Dimension:
    """A param of a search and its distribution."""

    path: str
    """The params file."""
    key: str
    """The key, with a plus if the file does not have it."""
    distribution: Any
    """Optuna's distribution, of the position in *texts* or of the value."""
    texts: tuple[str, ...] = ()
    """The values of a list or a range, in the syntax of ``-S``; empty for an interval."""

    @property
    def name(self) -> str:
        """The name of the param in Optuna, unique in the space."""
        return f"{self.path}:{self.key}"

    @property
    def title(self) -> str:
        """The key without a plus."""
        return self.key.lstrip("+")

    def text(self, value: Any) -> str:
        """Return *value* of the distribution as the text of the param, exactly."""
        if self.texts:
            return self.texts[int(value)]
        return repr(int(value) if isinstance(self.distribution.low, int) else float(value))

    def short_text(self, value: Any) -> str:
        """Return *value* of the distribution as a text for the name of the experiment."""
        is_real = not self.texts and isinstance(self.distribution.low, float)
        return f"{value:.{DIGITS_IN_NAMES}g}" if is_real else self.text(value)


@dataclass(frozen=True)
class Space:
    """The params that a search sets."""

    entries: tuple[tuple[str, str | Dimension], ...]
    """Each params file with an override, or with a param that varies, in the order of ``-S``."""

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The params that vary."""
        return tuple(entry for _, entry in self.entries if isinstance(entry, Dimension))

    def point(self, values: Mapping[str, Any]) -> Point:
        """Return the point with *values*, which Optuna drew for the name of each dimension."""
        files: dict[str, list[str]] = {}
        for path, entry in self.entries:
            own = entry if isinstance(entry, str) else f"{entry.key}={entry.text(values[entry.name])}"
            files.setdefault(path, []).append(own)
        varying = tuple((each.title, each.short_text(values[each.name])) for each in self.dimensions)
        return Point(tuple((path, tuple(mine)) for path, mine in files.items()), varying)


def read_space(set_params: Sequence[str], optuna: ModuleType) -> Space:
    """Return the space that *set_params* describe.

    Raises `ParamsError` for overrides that DVC cannot parse, a key that is set twice, a function that has no
    meaning in a search, and a space without a param that varies.
    """
    entries = tuple(
        (path, _entry(path, override, optuna.distributions))
        for path, mine in parse_overrides(set_params).items()
        for override in mine
    )
    space = Space(entries)
    if not space.dimensions:
        raise ParamsError("--search has no param to vary. Add for example -S 'fit.batch_size=range(16,128)'")
    return space


def _entry(path: str, override: Any, distributions: Any) -> str | Dimension:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return f"{key}={override.get_value_element_as_str()}"
    if mistake := _find_mistake(override):
        raise ParamsError(f"-S {override.input_line}: {mistake}")
    try:
        return _dimension(path, key, override, distributions)
    except ValueError as error:  # of Optuna, for bounds that are not in order
        raise ParamsError(f"-S {override.input_line}: {error}") from error


def _find_mistake(override: Any) -> str:
    """Return the reason for which a search cannot use *override*; empty if it can."""
    sweep = override.value()
    if not hasattr(sweep, "tags"):  # glob(…)
        return "this function is not supported"
    if override.is_interval_sweep() and not (math.isfinite(sweep.start) and math.isfinite(sweep.end)):
        return "the bounds of an interval must be finite"
    if not override.is_interval_sweep() and sweep.shuffle:
        return "a search draws values in an order of its own. Remove shuffle(…)"
    if sweep.tags - ({"log"} if override.is_interval_sweep() else set()):
        return "the only tag is log, of an interval, as in tag(log,interval(1e-5,1e-1))"
    return ""


def _dimension(path: str, key: str, override: Any, distributions: Any) -> Dimension:
    sweep = override.value()
    if override.is_interval_sweep():
        kind = (
            distributions.IntDistribution if isinstance(sweep.start, int) else distributions.FloatDistribution
        )
        return Dimension(path, key, kind(sweep.start, sweep.end, log="log" in sweep.tags))
    texts = tuple(dict.fromkeys(override.sweep_string_iterator()))
    if not texts:
        raise ParamsError(f"-S {override.input_line}: there are no values")
    if override.is_range_sweep():
        return Dimension(path, key, distributions.IntDistribution(0, len(texts) - 1), texts)
    return Dimension(path, key, distributions.CategoricalDistribution(range(len(texts))), texts)
