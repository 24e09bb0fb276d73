"""Signals as in `kills`, with a cache of hard links, or on another file system."""

from dataclasses import dataclass, replace
from pathlib import Path

from kills import Plan, Trials
from report import SkippedError

PLACES = (Path("/dev/shm"), Path("/var/tmp"))  # noqa: S108  in a folder of each trial
KINDS = {
    "hard links": "type = hardlink",
    "hard links or copies": "type = hardlink,copy",
    "symbolic links": "type = symlink",
    "copies": "",
}
"""The kinds of links to the cache, and the option of DVC. Hard links need one file system."""


@dataclass(frozen=True)
class CachePlan(Plan):
    """A trial with a cache of the kind *links*."""

    links: str = "copies"

    @property
    def label(self):
        """Return the name of the row in the table."""
        return f"{self.links}: {super().label}"


class CacheTrials(Trials):
    """Trials whose caches are those of `KINDS`."""

    def plan(self, index, attempt):
        """Return trial *index*, which starts without outputs, as links to another cache cannot be copied."""
        planned = replace(super().plan(index, attempt), start="empty")
        return CachePlan(**vars(planned), links=[*KINDS][index % len(KINDS)])

    def begin(self, planned, folder):
        """Return a project in *folder* with the cache that is *planned*."""
        project = super().begin(planned, folder)
        settings = f"[cache]\n{KINDS[planned.links]}\n"
        if planned.links != "hard links":
            cache = find_other_file_system(folder) / f"{folder.parents[1].name}-{folder.name}"
            cache.mkdir()
            (project.folder / ".dvc/cache").symlink_to(cache)  # for the comparison: DVC reads its settings
            project.folders.append(cache)
            settings += f"dir = {cache}\n"
        (project.folder / ".dvc/config.local").write_text(settings)
        return project


def find_other_file_system(folder):
    """Return one of `PLACES` that is not on the file system of *folder*. Raises `SkippedError` if all are."""
    for place in PLACES:
        if place.is_dir() and place.stat().st_dev != folder.stat().st_dev:
            return place
    raise SkippedError(f"none of {', '.join(map(str, PLACES))} is another file system")


def run(asked, folder, until):
    """Return a row for each trial."""
    find_other_file_system(folder)
    indices = [asked.replay] if asked.replay is not None else range(asked.count)
    return CacheTrials(folder, asked.seed, short=asked.short).run(indices, asked.jobs, until)
