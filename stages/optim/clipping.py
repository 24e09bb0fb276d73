"""Gradient clipping, which returns new tensors and does not wait for the device.

The norms and the scaling of half-precision gradients are computed in float32; the result keeps the dtype, and
sparse gradients stay sparse.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.optim.config import ClipByGlobalNorm, ClipByNorm, ClipByValue
from stages.optim.gradients import Gradients


def clip(gradients: Gradients, clipping: ClipByValue | ClipByNorm | ClipByGlobalNorm) -> list[Tensor | None]:
    """Return *gradients* clipped by *clipping*; None stays None, and smaller gradients keep their bits."""
    gradients = [g.coalesce() if g is not None and g.is_sparse else g for g in gradients]
    match clipping:
        case ClipByValue(value=value):
            return [
                None if g is None else _map_values(g, lambda values: values.clamp(-value, value))
                for g in gradients
            ]
        case ClipByNorm(max_norm=max_norm):
            return [None if g is None else _scale(g, _factor(_norm(_values(g)), max_norm)) for g in gradients]
        case ClipByGlobalNorm():
            return _clip_global_norm(gradients, clipping.max_norm)


def _clip_global_norm(gradients: Gradients, max_norm: float) -> list[Tensor | None]:
    present = [_values(gradient) for gradient in gradients if gradient is not None]
    # a half-precision gradient is replaced by its norm in float32, whose own norm is the same
    wide = [values if values.dtype == _wide(values) else _norm(values) for values in present]
    factor = _factor(torch.nn.utils.get_total_norm(wide), max_norm)
    scaled = {id(gradient): new for gradient, new in zip(*_scale_alike(gradients, factor), strict=True)}
    return [
        scaled.get(id(g))
        if g is None or id(g) in scaled
        else _scale(g, factor.to(g.device, non_blocking=True))
        for g in gradients
    ]


def _scale_alike(gradients: Gradients, factor: Tensor) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return those of *gradients* that have the dtype and the device of *factor*, and what it scales them to.

    On a GPU one kernel scales many of them, as in `torch.nn.utils.clip_grads_with_norm_`.
    """
    kind = factor.dtype, factor.device
    alike = [g for g in gradients if type(g) is Tensor and not g.is_sparse and (g.dtype, g.device) == kind]
    return alike, torch._foreach_mul(alike, factor) if alike else ()  # noqa: SLF001  no public name


def _factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the scale that limits *norm* to *max_norm*: at most 1, and 1 if the norm is 0."""
    return (max_norm / norm).clamp(max=1.0)


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dtype=_wide(values))
    return norm


def _scale(gradient: Tensor, factor: Tensor) -> Tensor:
    return _map_values(gradient, lambda values: (values.to(_wide(values)) * factor).to(values.dtype))


def _wide(values: Tensor) -> torch.dtype:
    """Return the dtype to compute norms in: at least float32, since squares of half-precision overflow."""
    return torch.promote_types(values.dtype, torch.float32)


def _values(gradient: Tensor) -> Tensor:
    """Return the explicit values of *gradient*: all elements, or those stored in a sparse tensor."""
    return gradient.values() if gradient.is_sparse else gradient


def _map_values(gradient: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply *change* to the values of *gradient* and keep its layout."""
    if not gradient.is_sparse:
        return change(gradient)
    return torch.sparse_coo_tensor(
        gradient.indices(),
        change(gradient.values()),
        gradient.shape,
        device=gradient.device,
        is_coalesced=True,
        check_invariants=False,
    )
