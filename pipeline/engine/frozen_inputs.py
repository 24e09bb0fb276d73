"""The inputs of an isolated run: the project at one moment, as a git commit.

The commit has HEAD and the changes in the workspace, and no reference points to it. All points of a sweep run
the same code even if files are edited while it runs, and neither DVC nor a kill changes the user's files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.utils.serialize import PARSERS

from pipeline.engine.git import git_error, run_git, try_git
from stages.contracts.errors import ParamsError, StageError


@dataclass(frozen=True)
class FrozenProject:
    """A project at one moment."""

    root: Path
    """The folder of the project, which contains params.yaml."""
    top: Path
    """The top-level folder of the git repository."""
    head: str
    """The commit that the experiments belong to."""
    commit: str
    """HEAD with the changes in the workspace; HEAD itself if there are none."""

    @property
    def prefix(self) -> Path:
        """Return the path of the project below the top level."""
        return self.root.relative_to(self.top)

    def text(self, path: str, commit: str | None = None) -> str | None:
        """Return the content of the file *path* in *commit*, by default `commit`; None if it is missing."""
        done = try_git(self.root, "show", f"{commit or self.commit}:./{path}")
        return done.stdout if done.returncode == 0 else None

    def content(self, path: str, commit: str | None = None) -> Any:
        """Return the values in the file *path*, read as DVC reads params; empty if the file is missing."""
        text = self.text(path, commit)
        return {} if text is None else parse_params(text, path)

    def experiments(self) -> dict[str, str]:
        """Return the experiments of this HEAD: name to commit."""
        prefix = self.ref("")
        listed = run_git(self.root, "for-each-ref", "--format=%(objectname) %(refname)", prefix)
        pairs = (line.split(" ", 1) for line in listed.splitlines())
        return {ref.removeprefix(prefix): commit for commit, ref in pairs}

    def ref(self, name: str) -> str:
        """Return the git reference of the experiment *name* of this HEAD."""
        return f"refs/exps/{self.head[:2]}/{self.head[2:]}/{name}"


def freeze(root: Path) -> FrozenProject:
    """Return the project in *root* at this moment, with the files that git tracks.

    Raises `ParamsError` unless *root* is a project of DVC in a git repository with a commit.
    """
    root = root.resolve()
    if not (root / ".dvc").is_dir():
        raise ParamsError(
            f"{root} has no .dvc. Run the command in the folder that has dvc.yaml and params.yaml"
        )
    head = try_git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if head.stderr.strip():
        raise git_error(root, ("rev-parse", "HEAD"), head)
    if head.returncode:
        raise ParamsError(
            f"{root} has no git commit, and experiments need one. Run `git add` and `git commit`"
        )
    top = Path(run_git(root, "rev-parse", "--show-toplevel").strip())
    try_git(root, "update-index", "--refresh")  # after `cp -a` or `touch`, git refuses to stash
    changed = try_git(root, "stash", "create", "learner sweep")
    if changed.returncode:
        raise _index_error(root) or git_error(root, ("stash", "create"), changed)
    return FrozenProject(root, top, head.stdout.strip(), changed.stdout.strip() or head.stdout.strip())


def _index_error(root: Path) -> StageError | None:
    """Return the error for a locked index, which `git stash create` does not report; None if it is free."""
    lock = root / run_git(root, "rev-parse", "--git-path", "index.lock").strip()
    if not lock.exists():
        return None
    return StageError(
        f"{lock} exists: another git process runs in this repository, or was killed. If none runs, "
        "run `learner doctor --fix`"
    )


def parse_params(text: str, path: str) -> Any:
    """Return the values in *text*, the content of the params file *path*, read as DVC reads it."""
    return PARSERS[Path(path).suffix.lower()](text, path)


def find_untracked_code(root: Path) -> list[str]:
    """Return the Python files below *root* that git neither tracks nor ignores; isolated copies lack them."""
    return run_git(root, "ls-files", "--others", "--exclude-standard", "--", "*.py").splitlines()
