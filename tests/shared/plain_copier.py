"""A copier of batches to a device without streams and pinned memory."""

from contextlib import nullcontext

import torch


class PlainCopier:
    """The operations of `StreamCopier` for a device without streams: each copy is complete at once."""

    def __init__(self, device):
        self.device = device

    def activate(self):
        """Return an empty context."""
        return nullcontext()

    def allocate(self, nbytes):
        """Return a buffer in ordinary memory."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def is_pinned(self, tensor):
        """Return False: no memory is pinned."""
        return False

    def copying(self):
        """Return an empty context."""
        return nullcontext()

    def copy(self, staged):
        """Copy *staged*, also if it is on the device already."""
        return staged.to(self.device, copy=True)

    def record(self):
        """Return an event that has passed."""
        return _Passed()

    def wait(self, event):
        """Do nothing."""

    def receive(self, tensor):
        """Do nothing."""


class _Passed:
    def synchronize(self):
        """Return at once."""
