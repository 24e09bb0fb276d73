"""Every part of Burn's Learner has a name in this project and a test that covers it."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = re.search(
    r"<!-- burn -->\n(.*?)<!-- /burn -->", (ROOT / "stages/learner/from_burn.md").read_text(), re.DOTALL
)[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| Burn ")
]


@cache
def names_of_tests(path):
    return set(re.findall(r"^ *def (\w+)", (ROOT / path).read_text(), re.MULTILINE))


def test_every_row_names_a_test_that_exists():
    assert len(ROWS) > 50
    for row in ROWS:
        burn, here, test = row
        assert burn, row
        assert here, row
        path, name = re.fullmatch(r"`(tests/[\w/]+\.py)::(\w+)`", test).groups()
        assert name in names_of_tests(path), row


def test_every_name_exists():
    """A name is an attribute of a public package, for example ``learner.LearnerBuilder.build``."""
    import importlib

    names = [name for _, here, _ in ROWS for name in re.findall(r"`(\w+\.[\w.]+)`", here)]
    assert len(names) > 50
    for name in names:
        package, *rest = name.split(".")
        found = importlib.import_module(f"stages.{package}")
        for part in rest:
            assert hasattr(found, part), name
            found = getattr(found, part)
