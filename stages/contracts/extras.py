"""Optional dependencies, imported when they are used."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stages.contracts.errors import PluginError


def load_extra(module: str, extra: str, user: str) -> Any:
    """Import and return *module*, which the extra *extra* of learner-pipeline installs.

    *user* names the part that needs it in the error message. Raises `PluginError` if *module* cannot be
    imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise _missing(module, extra, user, f"cannot be imported: {error}") from error


def check_extra(module: str, extra: str, user: str) -> None:
    """Raise `PluginError`, as `load_extra` does, if *module* is not installed; it is not imported."""
    if find_spec(module.partition(".")[0]) is None:
        raise _missing(module, extra, user, "is not installed")


def _missing(module: str, extra: str, user: str, reason: str) -> PluginError:
    name = "tensorboard" if extra == "tensorboard" else module.partition(".")[0]
    return PluginError(f"{user} needs {name}, which {reason}. Run `pip install 'learner-pipeline[{extra}]'`")
