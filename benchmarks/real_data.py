"""Measure image files and a large table: the memory of load-data and fit, and the throughput of loaders.

``images`` writes PNG files of 64×64 pixels in class folders, and compares the augmented and normalized
batches of an index with those of a hand-written torch Dataset and DataLoader. ``table`` writes a Parquet
file, and compares an epoch of a small model with one over a torch Dataset of rows and one over torch's
TensorDataset.
"""

import argparse
import io
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
import torch.nn.functional as F
from PIL import Image
from pyarrow import parquet
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stages import data
from stages.build_learner import build_learner
from stages.fit import fit
from stages.learner.from_params import build_loader
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitPaths

SIZE, CLASSES, COLUMNS = 64, 10, 50
AUGMENT = [{"kind": "random_crop", "padding": 4}, {"kind": "horizontal_flip"}]
MEGABYTE = 1e6


def write_images(folder: Path, count: int) -> None:
    """Write *count* PNG files in *folder*, in a folder for each class; the contents repeat."""
    generator = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
        contents = [encode(generator, label) for _ in range(100)]
        for number in range(count // CLASSES):
            (folder / f"class{label}" / f"{number:06}.png").write_bytes(contents[number % 100])


def encode(generator: np.random.Generator, label: int) -> bytes:
    """Return a random image of the class *label* as PNG."""
    small = (label * 20 + generator.integers(0, 60, (8, 8, 3))).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((SIZE, SIZE)).save(file, "PNG")
    return file.getvalue()


def write_table(path: Path, rows: int) -> None:
    """Write a Parquet file of *rows* rows with float32 columns and a target of four classes."""
    generator = np.random.default_rng(0)
    names = [f"x{number}" for number in range(COLUMNS)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("y", pa.int64())])
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, rows, 1_000_000):
            count = min(1_000_000, rows - start)
            columns = [generator.standard_normal(count, dtype=np.float32) for _ in names]
            target = (columns[0] > 0).astype(np.int64) + 2 * (columns[1] > 0)
            writer.write_table(pa.table([*columns, target], schema=schema))


def measure_peak(action: Callable[..., Any], *arguments: Any) -> tuple[float, list[float]]:
    """Run *action* in a new process; return its seconds, and its peak and those of its workers in MB."""
    process = multiprocessing.get_context("spawn").Process(target=action, args=arguments)
    start = time.perf_counter()
    process.start()
    watched, peaks = psutil.Process(process.pid), {}
    while process.is_alive():
        try:
            for each in [watched, *watched.children(recursive=True)]:
                peaks[each.pid] = max(peaks.get(each.pid, 0.0), each.memory_info().rss / MEGABYTE)
        except psutil.NoSuchProcess:
            pass
        process.join(0.2)
    if process.exitcode:
        raise SystemExit(f"a measured process ended with {process.exitcode}")
    own = peaks.pop(watched.pid)
    return time.perf_counter() - start, [own, *sorted(peaks.values(), reverse=True)]


def run_load_data(source: dict[str, Any], target: Path) -> None:
    """Run load-data."""
    load_data(LoadDataConfig(source=source, valid_fraction=0.1), LoadDataPaths(target))


def run_fit(prepared: Path, folder: Path, workers: int) -> None:
    """Run one epoch of fit with a small model."""
    model = {"kind": "mlp", "hidden_sizes": [16]}
    learner = BuildLearnerPaths(dataset=prepared / "dataset.json", learner=folder / "learner")
    build_learner(BuildLearnerConfig(model=model), learner)
    names = ("checkpoint", "train", "valid", "metrics", "plots", "runs")
    plots = {name: folder / "plots" / name for name in ("iterations", "confusion")}
    paths = FitPaths(
        artifacts=folder, learner=folder / "learner", data=prepared, **{n: folder / n for n in names}, **plots
    )
    config = FitConfig(num_epochs=1, num_workers=workers, num_threads=1, device="cpu", augment=AUGMENT)
    fit(config, paths)


class HandWrittenImages(Dataset[tuple[Tensor, int]]):
    """Images that are decoded, cropped, flipped and normalized one by one."""

    def __init__(self, paths: list[Path], targets: list[int], mean: float, std: float) -> None:
        self.paths, self.targets, self.mean, self.std = paths, targets, mean, std

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index]) as file:
            image = torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1)
        padded = F.pad(image, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = padded[:, top : top + SIZE, left : left + SIZE]
        image = image.flip(-1) if torch.rand(()) < 0.5 else image
        return (image.float() - self.mean) / self.std, self.targets[index]


class Rows(Dataset[tuple[Tensor, int]]):
    """Rows that are converted and normalized one by one."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, mean: float, std: float) -> None:
        self.inputs, self.targets, self.mean, self.std = inputs, targets, mean, std

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (torch.tensor(self.inputs[index]) - self.mean) / self.std, int(self.targets[index])


def compare(loaders: dict[str, Any], consume: Callable[[Any], None], rounds: int) -> dict[str, float]:
    """Return the median over *rounds* of the time of each of *loaders*, as a multiple of that of ``ours``."""
    times: list[dict[str, float]] = []
    for _ in range(rounds + 1):  # the first starts the workers
        times.append({})
        for name, loader in loaders.items():
            start = time.perf_counter()
            consume(loader)
            times[-1][name] = time.perf_counter() - start
    return {name: statistics.median(each[name] / each["ours"] for each in times[1:]) for name in loaders}


def measure_images(options: argparse.Namespace) -> None:
    """Print the memory of load-data and fit, and the throughput by the number of workers."""
    folder = options.directory
    write_images(folder / "images", options.images)
    source = {"kind": "image_folder", "path": str(folder / "images")}
    report("load-data", *measure_peak(run_load_data, source, folder / "prepared"))
    report("fit, one epoch", *measure_peak(run_fit, folder / "prepared", folder / "run", options.workers))
    files = sorted((folder / "images").rglob("*.png"))
    chosen = files[:: max(1, len(files) // options.samples)]
    for number, path in enumerate(chosen):
        (folder / "part" / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / "part" / path.parent.name / f"{number}.png").write_bytes(path.read_bytes())
    index = LoadDataConfig(source=source | {"path": str(folder / "part")}, materialize="index")
    load_data(index, LoadDataPaths(folder / "part-prepared"))
    prepared = data.read(folder / "part-prepared")
    mean, std = prepared.info.normalization.mean, prepared.info.normalization.std
    train = prepared.train
    paths = [Path(train.files.form.root, train.files.names[row]) for row in range(len(train))]
    written = HandWrittenImages(paths, [int(each) for each in train.targets], mean, std)
    for workers in (0, options.workers):
        config = FitConfig(num_workers=workers, augment=AUGMENT)
        loaders = {
            "ours": build_loader(config, prepared, "train"),
            "hand-written": DataLoader(
                written, 64, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            ),
        }
        ratio = compare(loaders, lambda loader: [None for _ in loader] and None, options.rounds)[
            "hand-written"
        ]
        print(f"{workers} workers: {ratio:.2f} × the images per second of the hand-written loader")


def measure_table(options: argparse.Namespace) -> None:
    """Print the memory of load-data, and the speed of an epoch."""
    folder = options.directory
    write_table(folder / "table.parquet", options.rows)
    source = {"kind": "table", "path": str(folder / "table.parquet"), "target": "y"}
    report("load-data", *measure_peak(run_load_data, source, folder / "prepared"))
    prepared = data.read(folder / "prepared")
    inputs, targets = (
        each[: options.samples].clone() for each in (prepared.train.inputs, prepared.train.targets)
    )
    mean, std = prepared.info.normalization.mean, prepared.info.normalization.std
    builder = data.DataLoaderBuilder(data.NormalizeBatcher(mean, std)).batch_size(256).shuffle(1)
    loaders = {
        "ours": builder.build(data.TensorDataset(inputs, targets)),
        "a Dataset of rows": DataLoader(Rows(inputs.numpy(), targets.numpy(), mean, std), 256, shuffle=True),
        "a TensorDataset": DataLoader(TensorDataset((inputs - mean) / std, targets), 256, shuffle=True),
    }
    for name, ratio in compare(loaders, train_epoch, options.rounds).items():
        if name != "ours":
            print(f"an epoch of an MLP: {ratio:.1f} × as fast as with {name} and torch's DataLoader")


def train_epoch(loader: Any) -> None:
    """Train a new model of two layers for one epoch."""
    model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for inputs, targets in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def report(name: str, seconds: float, peaks: list[float]) -> None:
    """Print the time and the memory of a stage."""
    workers = f", of its workers {max(peaks[1:]):.0f} MB" if len(peaks) > 1 else ""
    print(f"{name}: {seconds:.0f} s, peak of the process {peaks[0]:.0f} MB{workers}")


def main() -> None:
    """Run one part of the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["images", "table"])
    parser.add_argument("--directory", type=Path, required=True, help="a new folder for the data")
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--samples", type=int, default=None, help="samples in a comparison of loaders")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.samples = options.samples or {"images": 4_000, "table": 200_000}[options.part]
    options.directory.mkdir(parents=True)
    torch.set_num_threads(1)
    {"images": measure_images, "table": measure_table}[options.part](options)


if __name__ == "__main__":
    main()
