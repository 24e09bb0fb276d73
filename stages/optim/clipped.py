"""Gradients no larger than a config allows, as new tensors, without waiting for the device.

Half-precision gradients are measured and scaled in float32, and stay in their dtype; sparse ones stay sparse.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from stages.optim.clipping import ClipByGlobalNorm, ClipByNorm, ClipByValue
from stages.optim.gradients import Gradients


def clip(gradients: Gradients, clipping: ClipByValue | ClipByNorm | ClipByGlobalNorm) -> list[Tensor | None]:
    """*gradients* within *clipping*; a None stays None. A gradient that is within has its bits kept."""
    gradients = [g.coalesce() if g is not None and g.is_sparse else g for g in gradients]
    match clipping:
        case ClipByValue():
            return [None if g is None else _clamped(g, clipping.value) for g in gradients]
        case ClipByNorm():
            return [None if g is None else _shortened(g, clipping.max_norm) for g in gradients]
        case ClipByGlobalNorm():
            return _shortened_together(gradients, clipping.max_norm)


def _clamped(gradient: Tensor, value: float) -> Tensor:
    return _changed(gradient, lambda values: values.clamp(-value, value))


def _shortened(gradient: Tensor, max_norm: float) -> Tensor:
    return _scaled(gradient, _factor(_norm(_values(gradient)), max_norm))


def _shortened_together(gradients: Gradients, max_norm: float) -> list[Tensor | None]:
    present = [_values(gradient) for gradient in gradients if gradient is not None]
    # the norm of a norm is that norm: halves come in as theirs
    wide = [values if values.dtype == _wide(values) else _norm(values) for values in present]
    factor = _factor(torch.nn.utils.get_total_norm(wide), max_norm)
    return [None if g is None else _scaled(g, factor.to(g.device, non_blocking=True)) for g in gradients]


def _factor(norm: Tensor, max_norm: float) -> Tensor:
    """What to multiply with; 1 where nothing is too long, also where all is 0."""
    return (max_norm / norm).clamp(max=1.0)


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dtype=_wide(values))
    return norm


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    return _changed(gradient, lambda values: (values.to(_wide(values)) * factor).to(values.dtype))


def _wide(values: Tensor) -> torch.dtype:
    """Its own dtype, or float32 for halves, whose squares soon overflow."""
    return torch.promote_types(values.dtype, torch.float32)


def _values(gradient: Tensor) -> Tensor:
    """All that is not 0 by its layout."""
    return gradient.values() if gradient.is_sparse else gradient


def _changed(gradient: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """*change* of its values, in its layout."""
    if not gradient.is_sparse:
        return change(gradient)
    return torch.sparse_coo_tensor(
        gradient.indices(),
        change(gradient.values()),
        gradient.shape,
        is_coalesced=True,
        check_invariants=False,
    )
