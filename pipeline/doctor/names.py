"""The names of a user's packages."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.collision import find_collision_in_project
from pipeline.doctor.findings import Finding, problem


def names() -> Iterator[Finding]:
    """Find packages of the project in this folder that have the name of one of ours."""
    collision = find_collision_in_project(Path())
    if collision:
        yield problem("names", collision.problem, collision.remedy)
