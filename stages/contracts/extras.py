"""Optional dependencies, imported when they are used."""

from importlib import import_module
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
        name = "tensorboard" if extra == "tensorboard" else module.partition(".")[0]
        raise PluginError(
            f"{user} needs {name}, which cannot be imported: {error}. "
            f"Run `pip install 'learner-pipeline[{extra}]'`"
        ) from error
