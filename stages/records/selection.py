"""The choice of the tensors of a file that are loaded, and the names that they have in the model."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from stages.contracts.errors import RecordError

MAX_LISTED_NAMES = 3


@dataclass(frozen=True)
class Selection:
    """The tensors of a file to load; by default all of them under their own names.

    >>> chosen = Selection(prefix="module.", rename=(("^fc", "head"),), skip=("^aux",))
    >>> chosen.rename_names(["module.fc.bias", "module.aux.bias", "epoch"], "weights.pt")
    {'head.bias': 'module.fc.bias'}
    """

    prefix: str = ""
    """Load only names that begin with this text, and remove it from them."""
    rename: tuple[tuple[str, str], ...] = ()
    """Regular expressions and their replacements, applied in order with `re.sub`, after the prefix."""
    only: tuple[str, ...] = ()
    """Regular expressions; load only the renamed names in which one is found. Empty: all names."""
    skip: tuple[str, ...] = ()
    """Regular expressions; do not load the renamed names in which one is found."""

    def includes(self, name: str) -> bool:
        """Return True if `only` and `skip` permit the renamed *name*."""
        wanted = not self.only or any(re.search(pattern, name) for pattern in self.only)
        return wanted and not any(re.search(pattern, name) for pattern in self.skip)

    def rename_names(self, names: Collection[str], source: str) -> dict[str, str]:
        """Return the selected *names* of the file *source*, by their names in the model.

        Raises `RecordError` if two names become the same, or if no name begins with the prefix.
        """
        found: dict[str, str] = {}
        for name in names:
            renamed = self._rename(name.removeprefix(self.prefix), source)
            if not name.startswith(self.prefix) or not self.includes(renamed):
                continue
            if renamed in found:
                raise RecordError(
                    f"{source}: {found[renamed]!r} and {name!r} are both renamed to {renamed!r}. "
                    "Correct the patterns in rename"
                )
            found[renamed] = name
        if not any(name.startswith(self.prefix) for name in names):
            raise RecordError(
                f"{source}: no name begins with the prefix {self.prefix!r}; found {_list_first(names)}. "
                "Correct prefix"
            )
        return found

    def _rename(self, name: str, source: str) -> str:
        for pattern, replacement in self.rename:
            try:
                name = re.sub(pattern, replacement, name)
            except (re.error, IndexError) as error:
                raise RecordError(
                    f"{source}: cannot rename {name!r} with {pattern!r} to {replacement!r}: {error}"
                ) from error
        return name


ALL_TENSORS = Selection()
"""Every tensor under its own name."""


def _list_first(names: Collection[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return (", ".join(map(repr, list(names)[:MAX_LISTED_NAMES])) or "none") + more
