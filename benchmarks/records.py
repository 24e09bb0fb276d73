"""What a record costs: the recorders against torch.save and torch.load on the same disk.

    python benchmarks/records.py [--rounds 5] [--megabytes 300] [--directory /dev/shm]
    python benchmarks/records.py --mnist ../shared/mnist [--rounds 5] [--directory /dev/shm]

The state is weights and Adam's moments in float32, random. Everybody writes through the same "whole or not at
all", so a sync of the file and its directory is in every time; in a directory in memory it costs nothing. The
contestants run in turn, one torch thread; a ratio is that of one round to torch's time in that round; printed
are the best and the median over the rounds. gzip level 6 is Python's own, on a twentieth of the
state, times twenty. Memory is what a process of its own takes at most beyond what it had before, in MB while
saving and as multiples of the state while loading.

With --mnist, a checkpoint of the CNN of Burn's guide, after 200 steps with Adam on the MNIST in that folder,
in each recorder: processor time of all threads, interleaved, and the size of its four files.
"""

import argparse
import ctypes
import gzip
import hashlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages import data
from stages.data.sources import idx
from stages.learner import LearnerBuilder
from stages.models import Cnn
from stages.optim import Adam
from stages.records import (
    BurnpackRecorder,
    NamedMpkBytesRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    Recorder,
    SafetensorsRecorder,
)
from stages.renderers import NoRenderer
from stages.runs import Checkpoint, FileCheckpointer
from stages.system.files import open_atomic

State = dict[str, Any]
PARAMETERS = 20
SCALE = 20
MB = 1e6
STEPS = 200
CHECKPOINTS = {
    ".mpk.gz (default)": NamedMpkGzFileRecorder(),
    ".mpk.gz, stored": NamedMpkGzFileRecorder(compression=0),
    ".mpk": NamedMpkFileRecorder(),
    ".bpk": BurnpackRecorder(),
}


@dataclass(frozen=True)
class Contestant:
    """One way to keep a state in a file."""

    save: Callable[[State, Path], Path]
    """Gives the name of the file, which may have a suffix more."""
    load: Callable[[Path], object]
    scale: int = 1
    """By how much less than all of the state it is given, and its times are multiplied."""


def by_recorder(recorder: Recorder) -> Contestant:
    """As users call it."""
    return Contestant(recorder.record, recorder.load)


def torch_save(state: State, path: Path) -> Path:
    """With the same promise as ours: whole, and on the disk."""
    with open_atomic(path) as file:
        torch.save(state, file)
    return path


def gzip_save(state: State, path: Path) -> Path:
    """As one writes it first."""
    with open_atomic(path) as file, gzip.GzipFile("", "wb", 6, file, 0) as packed:
        packed.write(NamedMpkBytesRecorder().record(state))
    return path


def gzip_load(path: Path) -> object:
    """The same back."""
    return NamedMpkBytesRecorder().load(gzip.decompress(path.read_bytes()))


CONTESTANTS = {
    "torch.save": Contestant(torch_save, torch.load),
    ".mpk.gz, 1 thread": by_recorder(NamedMpkGzFileRecorder(threads=1)),
    ".mpk.gz, 2 threads": by_recorder(NamedMpkGzFileRecorder(threads=2)),
    ".mpk.gz, 3 threads": by_recorder(NamedMpkGzFileRecorder(threads=3)),
    ".mpk.gz, stored": by_recorder(NamedMpkGzFileRecorder(compression=0)),
    ".mpk": by_recorder(NamedMpkFileRecorder()),
    ".safetensors": by_recorder(SafetensorsRecorder()),
    "Python's gzip, level 6": Contestant(gzip_save, gzip_load, SCALE),
}


def state_of(megabytes: float) -> State:
    """Weights and the two moments, a third of *megabytes* each, as `torch.save` would get them."""
    generator = torch.Generator().manual_seed(0)
    size = max(int(megabytes * MB / 12 / PARAMETERS), 1)
    state: State = {}
    for number in range(PARAMETERS):
        gradient = torch.randn(size, generator=generator)
        state[f"layer_{number}"] = {
            "weight": torch.randn(size, generator=generator) / 16,
            "moment_1": gradient * 1e-3,
            "moment_2": gradient.square_().mul_(1e-6),
        }
    return state


def measured(state: State, rounds: int, directory: Path) -> dict[str, list[tuple[float, float]]]:
    """Per contestant and round the seconds of saving and loading."""
    part = state_of(state_size(state) / MB / SCALE)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds):
        for name, contestant in CONTESTANTS.items():
            begin = time.perf_counter()
            path = contestant.save(state if contestant.scale == 1 else part, directory / name)
            saved = time.perf_counter()
            loaded = contestant.load(path)
            end = time.perf_counter()
            del loaded
            times[name].append(((saved - begin) * contestant.scale, (end - saved) * contestant.scale))
    return times


def file_of(name: str, directory: Path) -> Path:
    """What *name* wrote."""
    suffixes = ("", ".mpk.gz", ".mpk", ".safetensors")
    return next(path for suffix in suffixes if (path := directory / (name + suffix)).is_file())


def state_size(state: State) -> int:
    """Bytes of the tensors."""
    return sum(tensor.nbytes for layer in state.values() for tensor in layer.values())


def status(field: str) -> int:
    """A line of Linux's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def taken_by(action: Callable[..., object], *arguments: object) -> int:
    """Bytes of memory that *action* had at most beyond those before it."""
    ctypes.CDLL(None).malloc_trim(0)  # or what was freed before would be used unseen
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    result = action(*arguments)
    del result
    return status("VmHWM") - before


def memory_saving(name: str, megabytes: float, directory: Path) -> float:
    """MB beyond the state."""
    torch.set_num_threads(1)
    contestant = CONTESTANTS[name]
    contestant.save(state_of(1), directory / "first")
    state = state_of(megabytes / contestant.scale)
    return taken_by(contestant.save, state, directory / "again") * contestant.scale / MB


def memory_loading(name: str, megabytes: float, directory: Path) -> float:
    """Times the state."""
    torch.set_num_threads(1)
    contestant = CONTESTANTS[name]
    contestant.load(contestant.save(state_of(1), directory / "first"))
    return taken_by(contestant.load, file_of(name, directory)) * contestant.scale / MB / megabytes


def in_a_process(measure: Callable[[str, float, Path], float], *arguments: Any) -> float:
    """What *measure* gives in a process that did nothing before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def report(times: dict[str, list[tuple[float, float]]], state: State, directory: Path) -> None:
    """The table, and whether the number of threads changes a byte."""
    size = state_size(state)
    print(f"{size / MB:.0f} MB of state; times as ratios to torch.save and torch.load, best / median")
    print(f"{'':24}{'save':>15}{'load':>15}{'seconds':>15}{'size %':>8}{'MB saving':>11}{'x loading':>11}")
    for name, rounds in times.items():
        pairs = list(zip(rounds, times["torch.save"], strict=True))
        ratios = [[mine[way] / torch_[way] for mine, torch_ in pairs] for way in (0, 1)]
        columns = [f"{min(each):.2f} / {statistics.median(each):.2f}" for each in ratios]
        columns.append(" / ".join(f"{min(one[way] for one in rounds):.2f}" for way in (0, 1)))
        share = file_of(name, directory).stat().st_size * CONTESTANTS[name].scale / size * 100
        saving, loading = (
            in_a_process(measure, name, size / MB, directory) for measure in (memory_saving, memory_loading)
        )
        cells = "".join(f"{column:>15}" for column in columns)
        print(f"{name:24}{cells}{share:8.1f}{saving:11.1f}{loading:11.2f}")
    digests = {
        hashlib.sha256(file_of(name, directory).read_bytes()).hexdigest()
        for name in times
        if "thread" in name
    }
    print(f"1, 2 and 3 threads: {'the same bytes' if len(digests) == 1 else 'DIFFERENT BYTES'}")


def train_guide(mnist: str, directory: Path) -> tuple[Checkpoint, State]:
    """Return a checkpoint of the CNN of Burn's guide, and what `torch.save` gets of it."""
    splits = data.prepare(idx(mnist))
    loader = data.DataLoaderBuilder(data.NormalizeBatcher(0.1307 * 255, 0.3081 * 255)).batch_size(64)
    batches = [batch for batch, _ in zip(loader.shuffle(42).build(splits.train), range(STEPS), strict=False)]
    torch.manual_seed(42)
    model = Cnn((1, 28, 28), 10)
    learner = LearnerBuilder(directory).devices(["cpu"]).renderer(NoRenderer()).build(model, Adam(), 1e-3)
    learner.fit(batches, batches[:1])
    trained = learner.components.state.model
    return trained.checkpoint({}), {
        "model": model.state_dict(),
        "optimizer": trained.optimizer.state_dict(),
    }


def report_guide(mnist: str, rounds: int, directory: Path) -> None:
    """Print the processor time and the size of a checkpoint for each recorder, after one round without."""
    checkpoint, state = train_guide(mnist, directory / "run")
    saves: dict[str, Callable[[Path], object]] = {
        "torch.save": lambda folder: torch_save(state, folder / "state")
    }
    for name, recorder in CHECKPOINTS.items():
        saves[name] = lambda folder, recorder=recorder: FileCheckpointer(folder, recorder).save(1, checkpoint)
    times: dict[str, list[float]] = {name: [] for name in saves}
    for _ in range(rounds + 1):
        for name, save in saves.items():
            (folder := directory / name).mkdir(exist_ok=True)
            begin = time.process_time()
            save(folder)
            times[name].append(time.process_time() - begin)
    sizes = {name: sum(file.stat().st_size for file in (directory / name).iterdir()) for name in saves}
    print(f"{'a checkpoint':20}{'best ms':>10}{'median ms':>12}{'MB':>8}{'size %':>8}")
    for name, (_, *rest) in times.items():
        best, median = (1e3 * value for value in (min(rest), statistics.median(rest)))
        share = 100 * sizes[name] / sizes["torch.save"]
        print(f"{name:20}{best:10.1f}{median:12.1f}{sizes[name] / MB:8.2f}{share:8.1f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--directory", type=Path, help="where the files go for a while")
    parser.add_argument("--mnist", help="folder of MNIST: measure a checkpoint of the CNN of Burn's guide")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.mnist:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            report_guide(options.mnist, options.rounds, Path(directory))
        return
    state = state_of(options.megabytes)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        report(measured(state, options.rounds, Path(directory)), state, Path(directory))


if __name__ == "__main__":
    main()
