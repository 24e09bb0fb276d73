"""The installation of this package, as a requirement that pip can repeat."""

import json
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from stages.contracts.errors import StageError

ORIGIN = "direct_url.json"
"""File in which pip records the source of a package, unless that is an index."""


@dataclass(frozen=True)
class Installation:
    """The files with which a project makes pip install this package."""

    requirement: str
    """Line for requirements.txt, the same on every machine."""
    local: str | None = None
    """Content of local.mk, which is specific to this machine; None if the requirement is sufficient."""


def find_this_package(name: str = "learner-pipeline") -> Distribution:
    """Return the installed distribution *name*, rather than the metadata in a checkout of it.

    Raises `StageError` if it is not installed.
    """
    found = list(distributions(name=name))
    if not found:
        raise StageError(
            f"{name} runs from a folder in which it is not installed. Install it with `pip install`"
        )
    return next((each for each in found if each.read_text("RECORD")), found[0])


def find_installation(package: Distribution) -> Installation:
    """Return how to repeat the installation of *package*: from an index, a URL, or a folder."""
    origin = json.loads(package.read_text(ORIGIN) or "{}")
    url = str(origin.get("url", ""))
    name = package.metadata["Name"]
    if not url:
        return Installation(f"{name}=={package.version}")
    if url.startswith("file:"):
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        comment = f"# {name} {package.version}: from LEARNER, in local.mk or as in `make LEARNER=PATH_OR_URL`"
        return Installation(comment, f"LEARNER := {editable}{_for_make(unquote(urlparse(url).path))}\n")
    control = origin.get("vcs_info")
    if control:
        return Installation(f"{name} @ {control['vcs']}+{url}@{control['commit_id']}")
    return Installation(f"{name} @ {url}")


def environment_bin() -> Path | None:
    """Return the folder of this environment's programs; None if ``learner`` is not among them."""
    folder = Path(sys.executable).parent
    return folder if (folder / "learner").exists() else None


def make_value(text: str) -> str:
    """Return *text* as the value of a variable in a makefile."""
    return text.replace("$", "$$").replace("#", "\\#")


def _for_make(path: str) -> str:
    """Return *path* as the value of a variable in a makefile that is one word in the shell."""
    return make_value("'" + path.replace("'", "'\\''") + "'")
