"""Decisions that any rank may ask for and that all ranks carry out after the same step."""

import time
from collections.abc import Callable
from typing import Any

import torch

from stages.distributed.rank_group import RankGroup, explain_lost_rank

INTERVAL_SECONDS = 0.25
MAX_GAP = 64
"""The most steps from one exchange of the ranks to the next."""


class Agreement:
    """Whether to stop and whether to save, on which the ranks agree without waiting for each other.

    An exchange is started at one step and read some steps later, at the same step on every rank: after about
    `INTERVAL_SECONDS`, as rank 0 measures it, and at most `MAX_GAP` steps. With one rank both are agreed at
    once.
    """

    def __init__(self, group: RankGroup, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._wanted = [False, False]
        self._agreed = [False, False]
        self._steps_left = 0
        self._gap = 1
        self._started_at = clock()
        self._exchange: tuple[Any, torch.Tensor] | None = None
        with explain_lost_rank():
            self._channel = None if group.size == 1 else torch.distributed.new_group(backend="gloo")

    def poll(self, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """Return whether to stop and whether to save after this step; call it once after each step.

        *stop* and *save* are what this rank asks for. What was agreed is returned until `end_save`.
        """
        if self._channel is None:
            return stop, save
        self._wanted = [self._wanted[0] or stop, self._wanted[1] or save]
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._read()
            self._start()
        return self._agreed[0], self._agreed[1]

    def end_save(self) -> None:
        """Forget the agreement to save, because it was carried out."""
        self._agreed[1] = False

    def close(self) -> None:
        """Wait for the exchange in progress, if any."""
        self._read()

    def _start(self) -> None:
        now = self._clock()
        seconds, self._started_at = (now - self._started_at) / self._gap, now
        gap = int(min(max(INTERVAL_SECONDS / max(seconds, 1e-9), 1), MAX_GAP)) if self._group.is_main else 0
        flags = torch.tensor([*self._wanted, gap], dtype=torch.int32)
        self._wanted = [False, False]
        maximum = torch.distributed.ReduceOp.MAX
        with explain_lost_rank():
            work = torch.distributed.all_reduce(flags, maximum, group=self._channel, async_op=True)
        self._exchange = work, flags
        self._steps_left = self._gap

    def _read(self) -> None:
        if self._exchange is None:
            return
        (work, flags), self._exchange = self._exchange, None
        with explain_lost_rank():
            work.wait()
        stop, save, self._gap = flags.tolist()
        self._agreed = [self._agreed[0] or bool(stop), self._agreed[1] or bool(save)]
