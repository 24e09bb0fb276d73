"""Copies of the project, one for each job, in which mutants are tested."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

IGNORED = ("tests/README.md", "CHANGELOG.md")
SHARED = "tests/conftest.py"


class Copies:
    """The files of the project at *root* that git does not ignore, and copies of them below *folder*."""

    def __init__(self, root, folder):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.decode()
        self.root, self.folder = root, folder
        self._names = sorted(
            {name for name in listed.split("\0") if (root / name).is_file() and name not in IGNORED}
        )

    def path(self, job):
        """Return the folder of the copy for *job*, counted from 0."""
        return self.folder / f"copy-{job}"

    def names(self, folder):
        """Return the paths below *folder*, relative to the project."""
        return [name for name in self._names if Path(name).is_relative_to(folder)]

    def write(self, count):
        """Write *count* copies; existing ones are made equal to the project again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run uses {self.folder}: wait for it, or end it") from None
        if (self.root.parent / "shared").is_dir() and not (self.folder / "shared").exists():
            (self.folder / "shared").symlink_to((self.root.parent / "shared").resolve())
        for job in range(count):
            copy, wanted = self.path(job), set(self._names)
            for name in self._names:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / name, copy / name)
            for folder, folders, files in os.walk(copy):
                folders[:] = [each for each in folders if each not in (".git", "__pycache__")]
                for name in files:
                    path = Path(folder, name)
                    if str(path.relative_to(copy)) not in wanted:
                        path.unlink()
            subprocess.run(["git", "init", "-q"], cwd=copy, check=True)  # the tests list the project's files

    def digest(self, tests):
        """Return a hash of the code and of the tests in the paths *tests*."""
        content = hashlib.sha256()
        for name in self._names:
            is_test = name.startswith("tests/") and name != SHARED
            if not is_test or any(Path(name).is_relative_to(each) for each in tests):
                content.update(f"{name}\0".encode() + (self.root / name).read_bytes())
        return content.hexdigest()[:16]
