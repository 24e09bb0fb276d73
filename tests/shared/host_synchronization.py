"""A counter of the points at which the host waits for a device, with the device `meta` as a stand-in."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default")


class CountSynchronizations(TorchDispatchMode):
    """Counts reads of the device and copies from and to it; a read from `meta` returns zeros."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(function)
        on_device = [each for each in args if isinstance(each, torch.Tensor) and each.is_meta]
        if name in READS and on_device:
            self.counts["read"] += 1
            return torch.zeros((), dtype=args[0].dtype).item() if "scalar" in name else torch.zeros(0, 1)
        if name.startswith("aten._fused_") and name.endswith(".tensor_lr"):
            return None  # torch cannot run it on `meta`
        if name == "aten._to_copy.default":
            target = torch.device(kwargs.get("device", args[0].device) or args[0].device)
            if args[0].is_meta and target.type == "cpu":
                self.counts["device to host"] += 1
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            if not args[0].is_meta and target.type == "meta":
                self.counts["host to device"] += 1
        if name == "aten.copy_.default" and args[0].is_meta != args[1].is_meta:
            self.counts["host to device" if args[0].is_meta else "device to host"] += 1
            if not args[0].is_meta:
                return args[0]
        return function(*args, **kwargs)


class BatchesOnDevice:
    """*steps* batches that are on the device already."""

    def __init__(self, shape, steps):
        inputs = torch.zeros(4, *shape, device="meta")
        self.batches = [(inputs, torch.zeros(4, dtype=torch.int64, device="meta"))] * steps

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)

    def set_device(self, device):
        pass
