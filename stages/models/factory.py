"""Construction of the model that params name."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from torch import nn

from stages.contracts import plugins
from stages.contracts.config import arguments_of
from stages.contracts.errors import BuilderError, PluginError
from stages.contracts.user_code import place_of
from stages.models.config import BUILT_IN
from stages.models.steps import ClassificationStep


def build_model(config: BaseModel, offered: Mapping[str, Any]) -> nn.Module:
    """Build the model that *config* names.

    Args:
        config: The config, with ``kind`` and the arguments of the model.
        offered: Further arguments, such as ``input_shape`` and ``num_outputs``. The model receives those that
            its signature names.

    Raises:
        PluginError: If the name cannot be resolved, if an argument does not fit, if the result is not a
            module with training and validation steps, or if a built-in model does not fit into memory.
    """
    kind: str = config.kind  # type: ignore[attr-defined]  # every model config and Use have one
    maker = plugins.find("model", kind, BUILT_IN)
    arguments = {**plugins.select_accepted(maker, offered), **arguments_of(config)}
    build = _build_built_in if kind in BUILT_IN else plugins.build
    model = build("model", kind, maker, arguments)
    missing = [name for name in ("train_step", "valid_step") if not hasattr(model, name)]
    if isinstance(model, nn.Module) and not missing:
        return model
    lacks = f"no {' and no '.join(missing)}" if missing else "steps, but it is not an nn.Module"
    raise PluginError(
        f"model {kind!r} is a {type(model).__name__} with {lacks}.\n"
        "  Add the steps with a mixin: class Net(ClassificationStep, YourModule): ...\n"
        "  (from stages.models import ClassificationStep, or RegressionStep)"
    )


def configure_loss(model: nn.Module, class_weights: Sequence[float] | None, label_smoothing: float) -> None:
    """Set the options of the default loss of *model*.

    Raises:
        BuilderError: If *model* is not a `ClassificationStep` with the default loss.
    """
    if not isinstance(model, ClassificationStep):
        raise BuilderError(
            "build_learner: class_weights and label_smoothing apply to the cross entropy of "
            f"ClassificationStep, and {type(model).__name__}{place_of(type(model))} is not derived from it. "
            "Remove them, or add the mixin"
        )
    model.configure_loss(class_weights=class_weights, label_smoothing=label_smoothing)


def _build_built_in(part: str, kind: str, maker: Any, arguments: Mapping[str, Any]) -> Any:
    """Build a built-in model; an error of torch means that the memory does not suffice."""
    try:
        return plugins.build(part, kind, maker, arguments)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise PluginError(
            f"{part} {kind!r} with {arguments} does not fit into memory ({reason}). Reduce its sizes"
        ) from error
