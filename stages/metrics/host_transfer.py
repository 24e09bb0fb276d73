"""The values of metrics from an accelerator, in one transfer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stages.contracts.outputs import as_count
from stages.metrics.state import Mean, MetricState

NUMBERS = (float, int)
ASYNCHRONOUS_DEVICES = ("cuda",)
"""The devices from which torch copies to the host while they run."""


class HostTransfer:
    """A copy of all numbers of the means in *measured*, and of *flag*, to the host.

    On CUDA it is in progress until `wait`, in order with what was launched before it.
    """

    def __init__(self, measured: list[MetricState], flag: Tensor | None = None) -> None:
        self._measured = measured
        self._has_flag = flag is not None
        scalars = [
            part
            for value in measured
            if isinstance(value, Mean)
            for part in (value.total, value.weight)
            if type(part) not in NUMBERS and isinstance(part, Tensor)
        ]
        if flag is not None:
            scalars.append(flag)
        self.is_asynchronous = bool(scalars) and scalars[-1].device.type in ASYNCHRONOUS_DEVICES
        """False if `wait` does not wait."""
        self._numbers = _copy_to_host(scalars) if scalars else torch.empty(0)
        if self.is_asynchronous:
            self._event = torch.Event(scalars[-1].device.type)
            self._event.record()

    def wait(self) -> tuple[list[MetricState], bool]:
        """Return the values with every mean on the host, and whether the flag was set.

        Other values stay on their device.
        """
        if self.is_asynchronous:
            self._event.synchronize()
        if not len(self._numbers):
            return self._measured, False
        numbers = iter(self._numbers.tolist())
        hosted = [_on_host(value, numbers) if isinstance(value, Mean) else value for value in self._measured]
        return hosted, self._has_flag and bool(next(numbers))


def transfer_to_host(measured: list[MetricState]) -> list[MetricState]:
    """Return *measured* with every mean on the host, in one transfer, which waits for the device."""
    return HostTransfer(measured).wait()[0]


@torch.no_grad()
def _copy_to_host(scalars: Sequence[Tensor]) -> Tensor:
    device = scalars[-1].device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    numbers = torch.stack([_convert(scalar, device, dtype) for scalar in scalars])
    return numbers.to("cpu", non_blocking=device.type in ASYNCHRONOUS_DEVICES)


def _convert(scalar: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return *scalar* on *device* as *dtype*; a comparison costs a third of a call of ``to``."""
    if scalar.dtype is dtype and scalar.device == device:
        return scalar
    return scalar.to(device, dtype)


def _on_host(mean: Mean, numbers: Iterator[float]) -> Mean:
    """Return *mean* with the next of *numbers* for each of its tensors."""
    total = next(numbers) if isinstance(mean.total, Tensor) else mean.total
    weight = as_count(next(numbers)) if isinstance(mean.weight, Tensor) else mean.weight
    return type(mean)(total, weight)
