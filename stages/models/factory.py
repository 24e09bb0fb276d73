"""From a name in params to a model."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from torch import nn

from stages.contracts import plugins
from stages.contracts.config import arguments_of
from stages.contracts.errors import PluginError
from stages.models.config import BUILT_IN


def build_model(config: BaseModel, offered: Mapping[str, Any]) -> nn.Module:
    """The model that *config* names, with its arguments and those of *offered* that it has a name for.

    Raises `PluginError` for a name that leads nowhere, arguments that do not fit, or something that
    cannot be trained, or a built-in model that does not fit into memory.
    """
    kind: str = config.kind  # type: ignore[attr-defined]  # every model config and Use have one
    maker = plugins.find("model", kind, BUILT_IN)
    arguments = {**plugins.accepted(maker, offered), **arguments_of(config)}
    build = _build_built_in if kind in BUILT_IN else plugins.build
    model = build("model", kind, maker, arguments)
    missing = [name for name in ("train_step", "valid_step") if not hasattr(model, name)]
    if isinstance(model, nn.Module) and not missing:
        return model
    lacks = f"no {' and no '.join(missing)}" if missing else "steps, but is no nn.Module"
    raise PluginError(
        f"model {kind!r} is a {type(model).__name__} with {lacks}.\n"
        "  put a mixin before it: class Net(ClassificationStep, YourModule): ...\n"
        "  (from stages.models import ClassificationStep; or RegressionStep)"
    )


def _build_built_in(part: str, kind: str, maker: Any, arguments: Mapping[str, Any]) -> Any:
    """Do what `plugins.build` does; an error of torch can only be that there is not the memory."""
    try:
        return plugins.build(part, kind, maker, arguments)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise PluginError(
            f"{part} {kind!r} with {arguments} does not fit into memory ({reason}). Reduce its sizes"
        ) from error
