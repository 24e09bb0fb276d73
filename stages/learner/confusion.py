"""What a trained model takes each class for, in one more pass over a split."""

from collections.abc import Callable
from typing import Any

import torch

from stages.contracts.outputs import ClassificationOutput
from stages.learner.batches import Loader, on_device
from stages.learner.randomness import set_random_state
from stages.metrics import ConfusionMatrix


@torch.no_grad()
def confusion_matrix(
    model: Any, loader: Loader, *, seed: int, should_stop: Callable[[], bool]
) -> ConfusionMatrix | None:
    """That of *model* over *loader*; None where it does not say one class a sample, or where it was stopped.

    A model that draws random numbers draws them from *seed*, whatever was trained before.
    """
    set_random_state(seed)
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    model.eval()
    total: ConfusionMatrix | None = None
    for batch in on_device(loader, device):
        item = model.valid_step(batch)  # in `map`, its StopIteration would end the loop
        if should_stop() or not _is_of_classes(item):
            return None
        matrix = ConfusionMatrix.of(item)
        total = matrix if total is None else total + matrix
    return total


def _is_of_classes(item: Any) -> bool:
    """Whether it has one class a sample, and not one a pixel."""
    return isinstance(item, ClassificationOutput) and (item.output.ndim, item.targets.ndim) == (2, 1)
