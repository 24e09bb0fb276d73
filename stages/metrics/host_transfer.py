"""The values of metrics from an accelerator, in one transfer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stages.contracts.outputs import as_count
from stages.metrics.state import Mean, MetricState


def transfer_to_host(
    measured: Sequence[MetricState], flag: Tensor | None = None
) -> tuple[list[MetricState], bool]:
    """Return *measured* with every mean on the host, and whether *flag* is set.

    All numbers of means on an accelerator and *flag* are read in one transfer, which waits for the device.
    Other values stay on their device.
    """
    scalars = [
        part
        for each in measured
        if isinstance(each, Mean)
        for part in (each.total, each.weight)
        if isinstance(part, Tensor)
    ]
    if flag is not None:
        scalars.append(flag)
    if not scalars:
        return list(measured), False
    dtype = torch.float32 if scalars[0].device.type == "mps" else torch.float64
    numbers = iter(torch.stack([each.detach().to(scalars[-1].device, dtype) for each in scalars]).tolist())
    hosted = [_on_host(each, numbers) if isinstance(each, Mean) else each for each in measured]
    return hosted, flag is not None and bool(next(numbers))


def _on_host(mean: Mean, numbers: Iterator[float]) -> Mean:
    """Return *mean* with the next of *numbers* for each of its tensors."""
    total = next(numbers) if isinstance(mean.total, Tensor) else mean.total
    weight = as_count(next(numbers)) if isinstance(mean.weight, Tensor) else mean.weight
    return type(mean)(total, weight)
