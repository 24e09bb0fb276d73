"""Averages of the weights of a model over its training."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from stages.contracts.errors import CheckpointError
from stages.optim.config import Ema, Swa


class WeightAverage:
    """The average of the weights of *model* by *config*, with the formulas of `torch.optim.swa_utils`.

    It has an entry for each floating-point tensor of the ``state_dict``, so the running statistics of a batch
    norm are averaged too. All other tensors are those of the model. The average of a tensor in half precision
    is float32, in which small changes are not lost.
    """

    def __init__(self, config: Ema | Swa, model: nn.Module) -> None:
        self.config = config
        self._model = model
        self._count = 0
        self._average: dict[str, Tensor] = {}
        self._raw: dict[str, Tensor] = {}
        self._update: Callable[[list[Tensor], list[Tensor], int], None] = (
            get_ema_multi_avg_fn(config.decay) if isinstance(config, Ema) else get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the average."""
        return sum(tensor.numel() * _wide_dtype(tensor).itemsize for tensor in self._entries().values())

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The averages, by their names in the ``state_dict``; empty before the first update."""
        return self._average

    @property
    def raw(self) -> Mapping[str, Tensor]:
        """The weights of the training that the average replaces in the model; empty outside of `apply`."""
        return self._raw

    def end_step(self, epoch: int) -> None:
        """Update an exponential moving average after a step of *epoch*."""
        if isinstance(self.config, Ema) and epoch >= self.config.start_epoch:
            self._add()

    def end_epoch(self, epoch: int) -> None:
        """Update a mean over epochs after the training of *epoch*."""
        if isinstance(self.config, Swa) and epoch >= self.config.start_epoch:
            self._add()

    @contextmanager
    @torch.no_grad()
    def apply(self) -> Iterator[None]:
        """Replace the weights of the model by their average in the block, if there is one yet."""
        if not self._average or self._raw:
            yield
            return
        entries = self._entries()
        self._raw = {name: entry.clone() for name, entry in entries.items()}
        try:
            _copy(self._average, entries)
            yield
        finally:
            _copy(self._raw, self._entries())
            self._raw = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the kind, the number of weights in the average, and the average."""
        return {"kind": self.config.kind, "count": self._count, "state": dict(self._average)}

    def load_state_dict(self, saved: Mapping[str, Any] | None) -> None:
        """Resume from *saved*; start from the beginning if it is None, or an average of another kind.

        Raises `CheckpointError` if it is the average of another model.
        """
        self._count, self._average = 0, {}
        if saved is None or saved["kind"] != self.config.kind or not saved["count"]:
            return
        current, state = self._entries(), saved["state"]
        shapes = {name: tensor.shape for name, tensor in current.items()}
        if shapes != {name: tensor.shape for name, tensor in state.items()}:
            raise CheckpointError(
                "the average in the checkpoint has other tensors than the model. Build the learner with the "
                "model that it was saved from"
            )
        self._count = int(saved["count"])
        self._average = {
            name: torch.empty_like(tensor, dtype=_wide_dtype(tensor)).copy_(state[name])
            for name, tensor in current.items()
        }

    @torch.no_grad()
    def _add(self) -> None:
        entries = self._entries()
        if self._count == 0:
            self._average = {name: entry.to(_wide_dtype(entry), copy=True) for name, entry in entries.items()}
        else:
            kinds = dict.fromkeys(map(type, entries.values()))
            for kind in kinds:  # an operation of torch does not take sharded weights and whole buffers
                names = [name for name, entry in entries.items() if type(entry) is kind]
                current = [entries[name].to(_wide_dtype(entries[name])) for name in names]
                self._update([self._average[name] for name in names], current, self._count)
        self._count += 1

    def _entries(self) -> dict[str, Tensor]:
        """Return the tensors to average."""
        entries = self._model.state_dict().items()
        return {
            name: value for name, value in entries if isinstance(value, Tensor) and value.is_floating_point()
        }


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
