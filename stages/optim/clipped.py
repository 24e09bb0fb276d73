"""Gradients no larger than a config allows, as new tensors, without waiting for the device."""

import torch
from torch import Tensor

from stages.optim.clipping import ClipByGlobalNorm, ClipByNorm, ClipByValue
from stages.optim.gradients import Gradients


def clip(gradients: Gradients, clipping: ClipByValue | ClipByNorm | ClipByGlobalNorm) -> list[Tensor | None]:
    """*gradients* within *clipping*; a None stays None. A gradient that is within has its bits kept."""
    match clipping:
        case ClipByValue():
            return [None if g is None else g.clamp(-clipping.value, clipping.value) for g in gradients]
        case ClipByNorm():
            return [None if g is None else _shortened(g, clipping.max_norm) for g in gradients]
        case ClipByGlobalNorm():
            return _shortened_together(gradients, clipping.max_norm)


def _shortened(gradient: Tensor, max_norm: float) -> Tensor:
    return gradient * _factor(torch.linalg.vector_norm(gradient), max_norm)


def _shortened_together(gradients: Gradients, max_norm: float) -> list[Tensor | None]:
    present = [gradient for gradient in gradients if gradient is not None]
    factor = _factor(torch.nn.utils.get_total_norm(present), max_norm)
    return [None if g is None else g * factor.to(g.device, non_blocking=True) for g in gradients]


def _factor(norm: Tensor, max_norm: float) -> Tensor:
    """What to multiply with; 1 where nothing is too long, also where all is 0."""
    return (max_norm / norm).clamp(max=1.0)
