"""A dataset that saves its position, and is read once."""

import torch
from torch.utils.data import IterableDataset


class Feed(IterableDataset):
    """Samples that are read once: a pass of 12 continues the last one."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while True:
            number, self.next = self.next, self.next + 1
            yield torch.tensor([number % 7, number % 5, number % 3, 1.0]), number % 2
            if self.next % 12 == 0:
                return

    def state_dict(self):
        return {"next": (self.next, {0: None})}

    def load_state_dict(self, state):
        self.next, _ = state["next"]
