"""Objects of a git repository, read by one process."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stages.contracts.errors import StageError


@dataclass(frozen=True)
class GitObject:
    """A commit or a file."""

    sha: str
    kind: str
    content: bytes


def read_objects(root: Path, names: Sequence[str]) -> list[GitObject | None]:
    """Return the objects that *names* mean in the repository *root*, as ``SHA:path``; None for a missing one.

    One process reads all of them: to start one for each, or a reader of scmrepo, takes most of the time of a
    long comparison. Raises `StageError` if git fails.
    """
    requested = "".join(f"{name}\n" for name in names)
    command = ["git", "-C", str(root), "cat-file", "--batch"]
    try:
        done = subprocess.run(command, input=requested.encode(), capture_output=True, check=False)  # noqa: S603  the user's own git
    except OSError as error:
        raise StageError(f"git cannot be started ({error.strerror}): install it") from error
    if done.returncode:
        raise StageError(f"git cannot read {root}: {done.stderr.decode(errors='replace').strip()}")
    return _parsed(done.stdout, len(names))


def committed_at(commit: GitObject) -> datetime:
    """Return when *commit* was made."""
    header = commit.content.partition(b"\n\n")[0].decode("utf-8", errors="replace")
    [line] = [line for line in header.split("\n") if line.startswith("committer ")]
    seconds, zone = line.rsplit(" ", 2)[1:]
    return datetime.fromtimestamp(int(seconds), datetime.strptime(zone, "%z").tzinfo)


def _parsed(answers: bytes, count: int) -> list[GitObject | None]:
    known: dict[str, GitObject] = {}
    """By SHA: runs have most of their files in common."""
    found: list[GitObject | None] = []
    start = 0
    while len(found) < count:
        end = answers.index(b"\n", start)
        header = answers[start:end].decode("utf-8", errors="replace")
        start = end + 1
        if header.endswith((" missing", " ambiguous")):
            found.append(None)
            continue
        sha, kind, size = header.split()
        if sha not in known:
            known[sha] = GitObject(sha, kind, answers[start : start + int(size)])
        found.append(known[sha])
        start += int(size) + 1
    return found
