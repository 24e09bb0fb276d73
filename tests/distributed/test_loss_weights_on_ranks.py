"""Losses with any divisor are combined over ranks as those of one large batch."""

import pytest
import torch
from ranks import run_ranks
from weighted_runs import CASES, TOLERANCE, assert_close, train, train_plainly

FSDP = ("class-weights", "ignored", "smoothed-sequences", "token-weights")
FEW = [
    *((name, 3, "carry", "ddp") for name in CASES),
    *((name, 1, "flush", "fsdp") for name in FSDP),
]
"""The case, the batches of a window, its leftover and the strategy of each run in one launch of ranks."""
MANY = [
    *((name, 1, "flush", strategy) for name in CASES for strategy in ("ddp", "fsdp")),
    *(
        (name, 3, left, strategy)
        for name in CASES
        for left in ("flush", "drop", "carry")
        for strategy in ("ddp", "fsdp")
    ),
]


def train_all(folder, runs, dtype):
    return [
        train(folder / f"{number}", CASES[name], window, leftover, dtype=dtype, strategy=strategy, saves=True)
        for number, (name, window, leftover, strategy) in enumerate(runs)
    ]


@pytest.mark.parametrize(
    ("size", "dtype", "runs"),
    [
        (2, torch.float64, FEW),
        pytest.param(2, torch.float32, MANY, marks=pytest.mark.long),
        pytest.param(3, torch.float64, MANY, marks=pytest.mark.long),
    ],
    ids=["2-ranks", "2-ranks-all", "3-ranks-all"],
)
def test_ranks_are_one_process(size, dtype, runs, tmp_path):
    results = run_ranks(train_all, size, tmp_path, runs, dtype)

    for rank in results:
        for (name, window, leftover, _), found in zip(runs, rank, strict=True):
            assert_close(found, train_plainly(CASES[name], window, leftover), TOLERANCE[dtype])
