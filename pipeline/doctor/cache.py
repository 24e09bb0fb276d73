"""The content of DVC's cache, read in full: each damaged file is a finding."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.findings import Finding, ok, problem
from pipeline.engine.cache_content import damaged_in


def cache() -> Iterator[Finding]:
    """Yield a finding for each damaged file of the cache."""
    try:
        with Repo() as repo:
            roots = dict.fromkeys(Path(each).resolve() for each in _roots(repo))
    except DvcException:
        return
    damaged = [place for root in roots for place in damaged_in(root)]
    for place in damaged:
        what = f"{place} is damaged: its content does not have the hash in its name"
        cure = (
            f"rm {place}: `learner doctor --deep --fix` does it. Then `learner pull` fetches it, or the next "
            "run computes it again; data of your own that `dvc add` tracks must be added again"
        )
        yield problem("cache", what, cure, partial(place.unlink, missing_ok=True))
    if not damaged:
        yield ok("cache", f"every file in {', '.join(map(str, roots))} is intact")


def _roots(repo: Repo) -> Iterator[str]:
    """Yield the folder of the cache, and that of the run-cache, which is the same as a rule."""
    yield repo.cache.local_cache_dir
    yield str(repo.cache.legacy.path)
