"""The lock and the cache have the same bytes on a machine with another property.

`test_entry_points.py` runs a process with all of them at once.
"""

import sys

import pytest
from other_machine import PROPERTIES, place

pytestmark = pytest.mark.long

READ_IN_ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("name", PROPERTIES)
def test_tracked_files_do_not_depend_on(name, finished, tmp_path, home):
    in_ascii = name == "locale"  # in which DVC cannot write a path with other letters
    project = place(tmp_path, home, PROPERTIES[name], *["in ASCII"] * in_ascii)

    ended = project.run(sys.executable, "-m", "other_machine", "run", **READ_IN_ASCII if in_ascii else {})

    assert ended.code == 0, ended.text
    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")
