"""Compare the throughput of an augmenting loader with a hand-written torch Dataset and DataLoader.

Both crop and flip uint8 images of 3×32×32 at random and normalize them. The loader does it with its built-in
kinds, which change a whole batch, and with the function of the hand-written dataset, called for each sample.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stages.data import DataLoaderBuilder, HorizontalFlip, NormalizeBatcher, RandomCrop, TensorDataset

BATCH_SIZE, PADDING, SIZE = 64, 4, 32
MEAN, STD = 120.0, 60.0


def crop_and_flip(image: Tensor) -> Tensor:
    """Return a random crop of the padded *image*, flipped with probability 0.5."""
    padded = F.pad(image, (PADDING,) * 4)
    top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
    cropped = padded[:, top : top + SIZE, left : left + SIZE]
    return cropped.flip(-1) if torch.rand(()) < 0.5 else cropped


class HandWritten(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that augments and normalizes each sample."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return (crop_and_flip(self.images[index]).float() - MEAN) / STD, self.labels[index]


def build_loaders(samples: int, workers: int) -> dict[str, DataLoader | object]:
    """Return the hand-written loader and ours."""
    images = torch.randint(0, 256, (samples, 3, SIZE, SIZE), dtype=torch.uint8)
    labels = torch.randint(0, 10, (samples,))
    builder = DataLoaderBuilder(NormalizeBatcher(MEAN, STD)).batch_size(BATCH_SIZE).num_workers(workers)
    dataset = TensorDataset(images, labels)
    return {
        "hand-written": DataLoader(
            HandWritten(images, labels),
            BATCH_SIZE,
            shuffle=True,
            num_workers=workers,
            persistent_workers=bool(workers),
        ),
        "built-in kinds": builder.shuffle(1)
        .augment([RandomCrop(padding=PADDING), HorizontalFlip()])
        .build(dataset),
        "own function": builder.augment([crop_and_flip]).build(dataset),
    }


def measure(loader: object, workers: int) -> float:
    """Return the seconds of one pass: of this process without workers, else of the clock."""
    clock = time.perf_counter if workers else time.process_time
    start = clock()
    for _ in loader:
        pass
    return clock() - start


def main() -> None:
    """Print a table of throughputs and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12_800)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| workers | loader | images per second | times as fast as hand-written |")
    print("|---:|---|---:|---:|")
    for workers in options.workers:
        loaders = build_loaders(options.samples, workers)
        for loader in loaders.values():
            measure(loader, workers)  # starts the workers
        rounds = [
            {name: measure(loader, workers) for name, loader in loaders.items()}
            for _ in range(options.rounds)
        ]
        for name in loaders:
            speed = options.samples / statistics.median(each[name] for each in rounds)
            ratio = statistics.median(each["hand-written"] / each[name] for each in rounds)
            print(f"| {workers} | {name} | {speed:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
