"""The points of a sweep: the grid of the values in ``-S``, expanded by the rules of DVC."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dvc.exceptions import DvcException
from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import get_hydra_sweeps, to_hydra_overrides
from hydra.errors import HydraException

from stages.contracts.errors import ParamsError


@dataclass(frozen=True)
class Point:
    """One value for every param that a sweep sets."""

    overrides: tuple[tuple[str, tuple[str, ...]], ...]
    """Each params file and its overrides, in the syntax of DVC's ``-S``; deterministic."""
    varying: tuple[tuple[str, str], ...]
    """The keys that differ between points, with the values of this one; all keys if the sweep has no grid."""

    @property
    def arguments(self) -> list[str]:
        """The arguments for `dvc exp run`."""
        return [part for path, mine in self.overrides for each in mine for part in ("-S", f"{path}:{each}")]


def expand(set_params: Sequence[str], *, draw: int | None = None, seed: int = 0) -> list[Point]:
    """Return every point of the grid of *set_params*, in the order in which the values are written.

    *draw* selects that many points without replacement, in an order that depends only on *seed*: a larger
    *draw* begins with the points of a smaller one. Raises `ParamsError` for overrides that DVC cannot parse,
    a key that is set twice, and an empty grid.
    """
    if not set_params:
        raise ParamsError("the sweep has no params to vary. Add for example -S fit.batch_size=32,64")
    state = random.getstate()
    random.seed(seed)  # hydra's shuffle(…) uses the global generator
    try:
        by_file = to_path_overrides(set_params)
        swept = [
            (path, override.key_or_group)
            for path, mine in by_file.items()
            for override in to_hydra_overrides(mine)
            if override.is_sweep_override()
        ]
        grid = [_point(each, swept) for each in get_hydra_sweeps(by_file)]
    except (DvcException, HydraException) as error:
        raise ParamsError(f"-S {' -S '.join(set_params)}: {_first_line(error)}") from error
    finally:
        random.setstate(state)
    _check_keys(by_file)
    points = list(dict.fromkeys(grid))
    if not points:
        raise ParamsError(f"-S {' -S '.join(set_params)}: the grid has no points. Give each key a value")
    if draw is None:
        return points
    random.Random(seed).shuffle(points)  # noqa: S311  a sample, not a secret
    return points[:draw]


def _check_keys(by_file: Mapping[str, Sequence[str]]) -> None:
    """Raise `ParamsError` for a key that is set twice: DVC would use the last values and drop the others."""
    for path, mine in by_file.items():
        keys = Counter(override.key_or_group for override in to_hydra_overrides(list(mine)))
        if twice := [key for key, count in keys.items() if count > 1]:
            raise ParamsError(f"-S sets {path}:{twice[0]} twice. Join the values, as in {twice[0]}=1,2")


def _point(overrides: dict[str, list[str]], swept: Sequence[tuple[str, str]]) -> Point:
    values = [
        ((path, override.key_or_group), override.get_value_element_as_str())
        for path, mine in overrides.items()
        for override in to_hydra_overrides(mine)
    ]
    varying = tuple((key, value) for (path, key), value in values if not swept or (path, key) in swept)
    return Point(tuple((path, tuple(mine)) for path, mine in overrides.items()), varying)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\nSee ")[0].split("\n"))
