"""The outcomes of mutants on disk, the mutants that change no behavior, and the score."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
CAUGHT = ("killed", "timeout")


class Results:
    """A file of JSON lines, one for each mutant that was tried; a truncated last line is dropped."""

    def __init__(self, path):
        self._path = path
        self.rows = {}
        if path.exists():
            text = path.read_text()
            if not text.endswith("\n"):  # a kill truncated the last line
                path.write_text(text := text[: text.rfind("\n") + 1])
            self.rows = {row["key"]: row for row in map(json.loads, text.splitlines())}

    def add(self, row):
        """Append *row*."""
        self.rows[row["key"]] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def find(self, mutant, digest, *, trust_kills=False):
        """Return the row of *mutant* for *digest* of code and tests; with *trust_kills* also an old kill."""
        row = self.rows.get(mutant.key)
        if row and (row["digest"] == digest or (trust_kills and row["outcome"] in CAUGHT)):
            return row
        return None


@dataclass(frozen=True)
class Equivalents:
    """The mutants that do not change behavior, so that no test can kill them, each with its reason."""

    entries: tuple

    @classmethod
    def read(cls):
        """Read the committed list."""
        return cls(tuple(tomllib.loads(EQUIVALENTS.read_text()).get("equivalent", ())))

    def __contains__(self, mutant):
        return any(_matches(entry, mutant) for entry in self.entries)

    def unknown(self, mutants):
        """Return the entries that match none of *mutants*, of the files that these are in."""
        files = {mutant.file for mutant in mutants}
        return [
            entry
            for entry in self.entries
            if entry["file"] in files and not any(_matches(entry, mutant) for mutant in mutants)
        ]


def _matches(entry, mutant):
    return all(entry[name] == getattr(mutant, name) for name in ("file", "function", "before", "after"))


@dataclass(frozen=True)
class Score:
    """The outcomes of the mutants of one package."""

    package: str
    mutants: int
    killed: int
    timeouts: int
    equivalent: int
    seconds: float

    @property
    def percent(self):
        """Return the percentage of the mutants that were caught, of those that change behavior."""
        return 100 * (self.killed + self.timeouts) / max(1, self.mutants - self.equivalent)

    def line(self):
        """Return a row of the table that `HEAD` begins."""
        survived = self.mutants - self.killed - self.timeouts - self.equivalent
        numbers = (self.mutants, self.killed, self.timeouts, survived, self.equivalent)
        cells = "".join(f"{number:>11}" for number in numbers)
        return f"{self.package:<14}{cells}{self.percent:>9.1f} %{self.seconds / 60:>9.1f}"


HEAD = f"{'package':<14}" + "".join(
    f"{name:>11}" for name in ("mutants", "killed", "timed out", "survived", "equivalent", "score", "minutes")
)


def score(package, rows, equivalents):
    """Return the `Score` of *package*; *rows* pairs each mutant with its row."""
    outcomes = [row["outcome"] for _, row in rows]
    survivors = [mutant for mutant, row in rows if row["outcome"] not in CAUGHT]
    return Score(
        package,
        len(rows),
        outcomes.count("killed"),
        outcomes.count("timeout"),
        sum(mutant in equivalents for mutant in survivors),
        sum(row["seconds"] for _, row in rows),
    )
