"""Muon for the matrices of a model and AdamW for the rest, as one optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Parts = list[torch.optim.Optimizer]


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers that share one state and one list of groups, the matrices' first.

    *muon* and *adamw* make torch's optimizers of the parameters they are given.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        muon: Callable[[list[Tensor]], torch.optim.Optimizer],
        adamw: Callable[[list[Tensor]], torch.optim.Optimizer],
    ) -> None:
        parameters = list(parameters)
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        others = [parameter for parameter in parameters if parameter.ndim != 2]
        self._parts: Parts = [make(some) for make, some in ((muon, matrices), (adamw, others)) if some]
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """One step of each, on the groups and the state that this optimizer has now."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss
