"""The methods with which a step logs numbers, images and texts beside its output."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.step_log import current_log

if TYPE_CHECKING:
    import numpy as np
    from torch.nn import Module
else:
    Module = object

CHANNELS = (1, 3)


class LoggingStep(Module):
    """A base that adds logging to the steps of a module, in training and in validation.

    `ClassificationStep` and `RegressionStep` have it. What is logged changes no weight, and outside of a run
    and an evaluation the methods do nothing. A training step that logs is not captured in a CUDA graph.
    """

    def log(self, name: str, value: "Tensor | float", *, weight: "Tensor | float | None" = None) -> None:
        """Log a number of the batch, whose mean over an epoch is a metric.

        A step that does not log *name* has no weight in the mean. The last call in a step counts. A name that
        `fit.metrics` declares as ``{kind: scalar}`` can be monitored, for example by early stopping.

        Args:
            name: The name in logs, curves and the summary.
            value: The mean over the samples of the batch: a number, or a tensor of one.
            weight: The divisor of that mean. Default: the weight of the output of the step.
        """
        if (log := current_log.get()) is not None:
            log.add_number(name, value.detach() if isinstance(value, Tensor) else value, weight)

    def log_image(self, name: str, image: Tensor) -> None:
        """Log an image, or those of a batch: the first four of *name* in each epoch and split, on rank 0.

        Args:
            name: The name of the files, ``<name>-1.png`` and so on, in the folder of the epoch.
            image: (H, W), (C, H, W) or (B, C, H, W) with 1 or 3 channels; floats from 0 to 1, or integers
                from 0 to 255. Other values are set to the nearest of these.

        Raises:
            BuilderError: If *image* has another shape.
        """
        log = current_log.get()
        if log is None or not log.accepts(name):
            return
        for part in image[: log.limit] if image.ndim == 4 else [image]:
            log.add_sample(name, _to_pixels(name, part))

    def log_text(self, name: str, text: str) -> None:
        """Log a text: the first four of *name* in each epoch and split, on rank 0, as ``<name>-1.txt`` …"""
        if (log := current_log.get()) is not None:
            log.add_sample(name, str(text))


def _to_pixels(name: str, image: Tensor) -> "np.ndarray":
    """Return *image* as uint8, (H, W) or (H, W, 3)."""
    pixels = image[None] if image.ndim == 2 else image
    if pixels.ndim != 3 or len(pixels) not in CHANNELS or not pixels.numel():
        raise BuilderError(
            f"log_image({name!r}): an image has the shape (H, W), (C, H, W) or (B, C, H, W), with 1 or 3 "
            f"channels; found {tuple(image.shape)}"
        )
    scale = 255 if image.is_floating_point() or image.dtype is torch.bool else 1
    values = pixels.detach().cpu().double().nan_to_num().mul(scale).round().clamp(0, 255).to(torch.uint8)
    array: np.ndarray = values.permute(1, 2, 0).contiguous().numpy()
    return array if len(pixels) == max(CHANNELS) else array[:, :, 0]
