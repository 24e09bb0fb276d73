"""Verification of what `learner pull` has fetched: the hash of each recorded file, and each record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.git import list_tracked_files
from pipeline.revisions.cache_content import OBJECTS, is_damaged, list_files, remove_from_cache
from pipeline.revisions.dvc_checks import check_places
from pipeline.revisions.files import RevisionFiles
from pipeline.revisions.names import open_project
from stages.checkpoints.verification import verify_path
from stages.contracts.errors import StageError
from stages.contracts.file_lists import check_file_names, is_below
from stages.records.tools.verification import find_records


@dataclass
class Verification:
    """What was verified in the recorded outputs of some revisions."""

    files: int = 0
    """Cached files, each counted once."""
    records: int = 0
    """Records and checkpoints, counted for each revision that has them."""
    problems: list[str] = field(default_factory=list)


def check_outputs() -> None:
    """Raise `StageError` if DVC would write an output outside of the project, or has an invalid name for it.

    Outputs are those of all dvc.yaml and .dvc files of the repository, as far as the cache has their lists.
    """
    with open_project() as repo:
        check_places(repo)
        root, cache = Path(repo.root_dir), Path(repo.cache.local.path)
        links = [root / path for path, is_link in list_tracked_files(root).items() if is_link]
        outside = [each for each in links if not each.resolve().is_relative_to(root.resolve())]
        for output in repo.index.outs:
            path = Path(output.fs_path)
            if link := next((each for each in outside if _overlap(each, path)), None):
                raise StageError(
                    f"{output}: git tracks the link {link}, which leads out of this project, and DVC would "
                    "write there. Remove the link"
                )
            if output.use_cache and output.hash_info and output.hash_info.name == OBJECTS:
                list_files(cache, str(output.hash_info.value))


def _overlap(first: Path, second: Path) -> bool:
    return first == second or first in second.parents or second in first.parents


def verify_outputs(revisions: Mapping[str, RevisionFiles]) -> Verification:
    """Verify every output of *revisions* in DVC's local cache, and remove damaged files from it.

    DVC takes a file that it has fetched as intact; here its content is read.
    """
    found = Verification()
    verdicts: dict[Path, str | None] = {}
    for name, files in revisions.items():
        places = dict(files.locate_files())
        for path, (place, md5) in places.items():
            if place not in verdicts:
                verdicts[place] = _verify_file(place, md5)
            if verdicts[place]:
                found.problems.append(f"{name}: {path} is {verdicts[place]}")
        found.problems += [f"{name}: {place} is damaged" for place in sorted(files.damaged)]
        _verify_records(name, {path: place for path, (place, _) in places.items()}, found)
    found.files = len(verdicts)
    return found


def remove_damaged_checkouts(workspace: RevisionFiles) -> None:
    """Remove each file of *workspace* that DVC restored from a damaged one, so that DVC restores it again.

    DVC's state database has the recorded hash of such a file, whose content has another. A file that was
    edited later is not in the database, and stays.
    """
    with open_project() as repo:
        for path, (_, md5) in workspace.locate_files():
            place = Path(path)
            if not is_below(place, Path()):
                continue
            _, known = repo.state.get(str(place.absolute()), repo.fs)
            if known is not None and known.value == md5 and is_damaged(place, md5):
                place.unlink()


def _verify_file(place: Path, md5: str) -> str | None:
    """Return what is wrong with the cached file *place*; None if it is intact. A damaged one is removed."""
    if not place.exists():
        return "missing in the cache"
    if is_damaged(place, md5):
        remove_from_cache(place, place.parents[1])
        return "damaged"
    return None


def _verify_records(name: str, places: Mapping[str, Path], found: Verification) -> None:
    """Add to *found* the verdict on each record among *places*, which are cached files by their path."""
    check_file_names(list(places), f"dvc.lock of {name}")
    with TemporaryDirectory() as folder:
        for path, place in places.items():
            if place.exists():
                link = Path(folder) / path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(place)
        if not any(find_records(Path(folder))):
            return
        for verdict in verify_path(Path(folder)):
            found.records += 1
            if verdict.problem:
                found.problems.append(f"{name}: {verdict.name}: {verdict.problem}".replace(f"{folder}/", ""))
