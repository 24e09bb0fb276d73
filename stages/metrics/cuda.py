"""The memory of the graphics cards."""

import torch

from stages.metrics.gauge import Gauge


class CudaMetric(Gauge):
    """The memory in use, by whatever program, on the cards that this one has put something on; NaN with none.

    In 10⁹ bytes, summed. Other cards are not asked: asking one takes some of its memory.
    Burn's is text, and of every card.
    """

    name = "Cuda"
    unit = "GB"

    def __init__(self) -> None:
        super().__init__(_used)


def _used() -> float:
    cards = [card for card in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(card)]
    free_and_total = [torch.cuda.mem_get_info(card) for card in cards]
    return sum(total - free for free, total in free_and_total) / 1e9 if cards else float("nan")
