"""The files of this repository, or of an unpacked source distribution of it."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "learner_pipeline.egg-info/SOURCES.txt"
"""The list of files that a source distribution has."""


def list_files():
    """Return the files that git tracks or would track, sorted; without a repository, those of `SOURCES`."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        )
    else:
        listed = SOURCES.read_text(encoding="utf-8").splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).is_file())
