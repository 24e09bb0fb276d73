"""Planted changes of code, data, params and versions: all of them with ``make long``."""

from collections import Counter

import planted
import pytest

LEAST = 200


def test_at_least_200_changes_are_planned_with_each_entry_and_every_kind():
    changes = planted.plan()
    taken_back = [change for change in changes if change.rerun and change.kind != "version"]

    assert len(changes) + len(taken_back) >= LEAST
    assert set(Counter(change.entry for change in changes).values()) == {len(changes) // len(planted.ENTRIES)}
    assert {change.kind for change in changes} > {*planted.NAMES, "param", "version"}


@pytest.mark.long  # project/test_dependencies.py has each kind of read, engine/test_reasons.py the reasons
def test_planted_changes_rerun_what_depends_on_them_and_nothing_else(tmp_path):
    assert planted.try_all(tmp_path, tmp_path / "home", planted.plan()).problems == []
