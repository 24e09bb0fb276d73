"""versions.yaml has a hash of the shipped code that a project depends on."""

from pathlib import Path

import stages
from pipeline.project.versions import CODE


def test_each_hash_is_that_of_modules():
    [root] = map(Path, stages.__path__)

    assert {name: any(root.glob(pattern)) for name, pattern in CODE.items()} == dict.fromkeys(CODE, True)
