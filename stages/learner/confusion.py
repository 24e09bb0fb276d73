"""What a trained model takes each class for, in one more pass over a split."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stages.contracts.confusion import shown_cells
from stages.contracts.outputs import ClassificationOutput
from stages.learner.batches import Loader, on_device
from stages.learner.learner import Learner
from stages.learner.randomness import set_random_state
from stages.metrics import ConfusionMatrix
from stages.metrics.class_targets import is_soft

log = logging.getLogger(__name__)


def confusion_cells(run: Learner, loader: Any, seed: int) -> Sequence[tuple[int, ...]]:
    """Return the cells to show of the confusion matrix of *run* over *loader*; none if it cannot be computed.

    Any error, also of the user's model, is logged as a warning: a plot must not fail the run that it shows.
    """
    try:
        matrix = confusion_matrix(run.model, loader, seed=seed, should_stop=lambda: run.interrupted)
        return shown_cells(matrix.cells(), matrix.classes) if matrix else []
    except Exception as error:  # noqa: BLE001  the results of the training are worth more than a plot
        log.warning(
            "the confusion matrix cannot be computed: %r. The results of the training are not affected", error
        )
        return []


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
        matrix = ConfusionMatrix.from_output(item)
        total = matrix if total is None else total + matrix
    return total


def _is_of_classes(item: Any) -> bool:
    """Return whether *item* has one class per sample, not per position."""
    if not isinstance(item, ClassificationOutput) or item.output.ndim > 2:
        return False
    if item.targets.is_floating_point() and is_soft(item.targets):
        return False
    return item.targets.ndim == 1 or item.targets.shape == item.output.shape == (item.size, 1)
