"""Whether a Prefect API is configured, told without importing Prefect."""

import os
import tomllib
from pathlib import Path

URL = "PREFECT_API_URL"


def configured() -> bool:
    """Whether ``PREFECT_API_URL`` is set, in the environment or in the active profile of Prefect."""
    return bool(setting(URL))


def setting(name: str) -> str:
    """What *name* is set to, in the environment or else in Prefect's active profile; empty for nothing."""
    if name in os.environ:
        return os.environ[name]
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    path = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return ""
    active = os.environ.get("PREFECT_PROFILE", content.get("active", ""))
    return str(content.get("profiles", {}).get(active, {}).get(name, ""))
