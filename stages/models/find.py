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
    cannot be trained.
    """
    kind: str = config.kind  # type: ignore[attr-defined]  # every model config and Use have one
    maker = plugins.find("model", kind, BUILT_IN)
    model = plugins.build("model", kind, maker, {**plugins.accepted(maker, offered), **arguments_of(config)})
    missing = [name for name in ("train_step", "valid_step") if not hasattr(model, name)]
    if isinstance(model, nn.Module) and not missing:
        return model
    lacks = f"no {' and no '.join(missing)}" if missing else "steps, but is no nn.Module"
    raise PluginError(
        f"model {kind!r} is a {type(model).__name__} with {lacks}.\n"
        "  put a mixin before it: class Net(ClassificationStep, YourModule): ...\n"
        "  (from stages.models import ClassificationStep; or RegressionStep)"
    )
