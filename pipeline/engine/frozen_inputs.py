"""What every point of a sweep starts from: the project as git sees it when the sweep begins.

It is a commit, of HEAD and the changes in the workspace, which nothing refers to. So all points run the same
code, whatever is edited meanwhile, and neither DVC nor a kill ever touches the user's files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.utils.serialize import PARSERS

from pipeline.engine.git import git_error, run_git, try_git
from stages.contracts.errors import ParamsError, StageError


@dataclass(frozen=True)
class FrozenProject:
    """A project, frozen."""

    root: Path
    """The folder of the project: it has params.yaml."""
    top: Path
    """The folder that git calls the top level."""
    head: str
    """The commit that the experiments hang on."""
    commit: str
    """HEAD with the changes of the workspace; HEAD itself where there are none."""

    @property
    def prefix(self) -> Path:
        """Where the project is below the top level."""
        return self.root.relative_to(self.top)

    def text(self, path: str, commit: str | None = None) -> str | None:
        """The file *path* of the project in *commit*; None where it is not there."""
        done = try_git(self.root, "show", f"{commit or self.commit}:./{path}")
        return done.stdout if done.returncode == 0 else None

    def content(self, path: str, commit: str | None = None) -> Any:
        """What the file *path* says, read as DVC reads params; empty where there is none."""
        text = self.text(path, commit)
        return {} if text is None else parse_params(text, path)

    def experiments(self) -> dict[str, str]:
        """The experiments on this HEAD: name to commit."""
        where = self.ref("")
        listed = run_git(self.root, "for-each-ref", "--format=%(objectname) %(refname)", where)
        pairs = (line.split(" ", 1) for line in listed.splitlines())
        return {ref.removeprefix(where): commit for commit, ref in pairs}

    def ref(self, name: str) -> str:
        """Where DVC keeps the experiment *name* of this HEAD."""
        return f"refs/exps/{self.head[:2]}/{self.head[2:]}/{name}"


def freeze(root: Path) -> FrozenProject:
    """The project in *root* as it is now, as far as git knows its files.

    Raises `ParamsError` where it is no project of git's and DVC's with a commit.
    """
    root = root.resolve()
    if not (root / ".dvc").is_dir():
        raise ParamsError(f"{root} has no .dvc: start in the folder that has dvc.yaml and params.yaml")
    head = try_git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if head.stderr.strip():
        raise git_error(root, ("rev-parse", "HEAD"), head)
    if head.returncode:
        raise ParamsError(f"{root} has no commit of git, on which experiments hang: git add, git commit")
    top = Path(run_git(root, "rev-parse", "--show-toplevel").strip())
    try_git(root, "update-index", "--refresh")  # after `cp -a` or `touch`, git refuses to stash
    changed = try_git(root, "stash", "create", "learner sweep")
    if changed.returncode:
        raise _locked(root) or git_error(root, ("stash", "create"), changed)
    return FrozenProject(root, top, head.stdout.strip(), changed.stdout.strip() or head.stdout.strip())


def _locked(root: Path) -> StageError | None:
    """Return the error for an index that is locked, of which `git stash create` prints nothing."""
    lock = root / run_git(root, "rev-parse", "--git-path", "index.lock").strip()
    if not lock.exists():
        return None
    return StageError(
        f"{lock} exists: another git process runs in this repository, or was killed. If none runs, "
        "run `learner doctor --fix`"
    )


def parse_params(text: str, path: str) -> Any:
    """What the params file *path* says whose content is *text*, read as DVC does."""
    return PARSERS[Path(path).suffix.lower()](text, path)


def find_untracked_code(root: Path) -> list[str]:
    """The Python files below *root* that git neither knows nor ignores: no isolated copy has them."""
    return run_git(root, "ls-files", "--others", "--exclude-standard", "--", "*.py").splitlines()
