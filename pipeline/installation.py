"""Where pip finds this package again, as it was installed."""

import json
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from stages.contracts.errors import StageError

ORIGIN = "direct_url.json"
"""What pip leaves of where a package came from; nothing where that was an index."""


@dataclass(frozen=True)
class Installation:
    """What a project that depends on this package tells pip."""

    requirement: str
    """A line of requirements.txt: the same on every machine."""
    local: str | None = None
    """What local.mk says, which is this machine's own; None where the requirement is enough."""


def this_package(name: str = "learner-pipeline") -> Distribution:
    """The distribution that this is, as installed; what a checkout notes of itself is not meant.

    Raises `StageError` where it is not installed.
    """
    found = list(distributions(name=name))
    if not found:
        raise StageError(f"{name} is not installed, only started: `pip install` it first")
    return next((each for each in found if each.read_text("RECORD")), found[0])


def installation(package: Distribution) -> Installation:
    """How *package* was installed: by name from an index, from a URL, or from a folder of this machine."""
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
    """*path* as a variable of make that the shell sees as one word."""
    return make_value("'" + path.replace("'", "'\\''") + "'")
