"""A run that was stopped between two batches resumes to the same bytes as an uninterrupted one."""

import errno
import random

import numpy as np
import pytest
import torch
from long_tests import long
from plain_copier import PlainCopier
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import CheckpointError
from stages.data import DataLoaderBuilder, MapperDataset, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import (
    AccuracyMetric,
    AurocMetric,
    DataWaitMetric,
    IterationSpeedMetric,
    LearningRateMetric,
    LossMetric,
    PeakMemoryMetric,
    PrecisionMetric,
)
from stages.models import ClassificationStep
from stages.optim import Adam, Cosine, NonFinite, Scheduler
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.runs import KeepLast, MetricEarlyStopping
from stages.runs.file_names import marker_name

TRAIN_BATCHES, VALID_BATCHES = 5, 2
MOST_EPOCHS, EPOCHS = 5, 3
"""Early stopping ends the run after the third."""
STEPS = range(1, EPOCHS * (TRAIN_BATCHES + VALID_BATCHES))


class Net(ClassificationStep, nn.Sequential):
    """Draws from the generators of torch, Python and NumPy in each forward pass."""

    def forward(self, inputs):
        noise = random.random() + np.random.rand() if self.training else 0.0  # noqa: S311  not for secrets
        return super().forward(inputs) + 0.1 * noise


def augmented(sample):
    inputs, target = sample
    return inputs + 0.1 * torch.randn(4), target


def dataset(samples):
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(samples))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loaders(workers, batch_size=8):
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(batch_size).num_workers(workers)
    train = MapperDataset(dataset(8 * TRAIN_BATCHES - 3), augmented)
    return builder.shuffle(5).build(train), builder.build(dataset(8 * VALID_BATCHES - 5))


def run(directory, stop_after=None, workers=0, change=lambda builder: builder, batch_size=8):
    """Train in *directory* from the newest checkpoint, if any; return the learner."""
    torch.manual_seed(3)
    model = Net(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    builder = LearnerBuilder(directory).num_epochs(MOST_EPOCHS).seed(1).devices(["cpu"])
    for metric in (LossMetric(), AccuracyMetric(), PrecisionMetric(), AurocMetric()):
        builder.metrics(metric)
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").grads_accumulation(3)
    builder.early_stopping(MetricEarlyStopping(n_epochs=2, min_delta=0.3))
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = change(builder).build(model, Adam(), Scheduler(0.05, Cosine(num_iters=20)))
    learner.fit(*loaders(workers, batch_size))
    return learner


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    learner = run(directory)
    assert (learner.epoch, learner.interrupted) == (EPOCHS, False)
    return read_run_files(directory)


STEP_WITH_WORKERS = TRAIN_BATCHES + 1
SHORT_STEPS = (3, STEP_WITH_WORKERS, 2 * (TRAIN_BATCHES + VALID_BATCHES))
"""Stops within training, within validation, and at the end of an epoch."""


@pytest.mark.parametrize(
    ("stop_after", "workers"),
    [(step, 0) if step in SHORT_STEPS else long(step, 0) for step in STEPS]
    + [(step, 2) if step == STEP_WITH_WORKERS else long(step, 2) for step in STEPS],
)
def test_run_stopped_twice_at_any_step_equals_uninterrupted_run(stop_after, workers, uninterrupted, tmp_path):
    first = run(tmp_path, stop_after, workers)
    second = run(tmp_path, stop_after=1, workers=workers)
    run(tmp_path, workers=workers)

    assert first.interrupted
    assert second.resumed
    assert read_run_files(tmp_path) == uninterrupted


@pytest.mark.parametrize("stop_after", [3, STEP_WITH_WORKERS])
def test_position_in_an_epoch_of_other_batches_is_refused(stop_after, tmp_path):
    """The batch after it would have samples that were in earlier ones."""
    run(tmp_path, stop_after)

    with pytest.raises(
        CheckpointError, match="batches of 8 samples, and those of this loader have 4. Use the batch size"
    ):
        run(tmp_path, batch_size=4)


@pytest.mark.parametrize(("stop_after", "limit"), [(3, (2,)), (3, (3,)), (6, (None, 1))])
def test_position_behind_the_limit_of_batches_is_refused(stop_after, limit, uninterrupted, tmp_path):
    """The pass would have no value. With the previous limit the run resumes."""
    run(tmp_path, stop_after)

    with pytest.raises(CheckpointError, match="there is no batch after it. Use the loader and the limit"):
        run(tmp_path, change=lambda builder: builder.limit_batches(*limit))

    run(tmp_path)
    assert read_run_files(tmp_path) == uninterrupted


def test_telemetry_changes_no_other_file_of_a_resumed_run(uninterrupted, tmp_path):
    def change(builder):
        return builder.metrics(DataWaitMetric(), PeakMemoryMetric(), IterationSpeedMetric())

    run(tmp_path, stop_after=2, change=change)
    run(tmp_path, stop_after=TRAIN_BATCHES + 1, change=change)
    run(tmp_path, change=change)

    found = read_run_files(tmp_path)
    assert {name for name in found if name.startswith("telemetry/train/epoch-1")} == {
        f"telemetry/train/epoch-1/{name}.log" for name in ("Data_Wait", "Iteration_Speed", "Peak_Memory")
    }
    assert {name: content for name, content in found.items() if "telemetry" not in name} == uninterrupted


@pytest.mark.gpu
def test_resumed_run_on_cuda_equals_uninterrupted_run_if_deterministic(tmp_path):
    def on_cuda(builder):
        return builder.devices(["cuda:0"]).deterministic()

    run(tmp_path / "uninterrupted", change=on_cuda)
    for stop_after in (3, 1, 5):
        run(tmp_path / "interrupted", stop_after, change=on_cuda)
    run(tmp_path / "interrupted", change=on_cuda)

    assert read_run_files(tmp_path / "interrupted") == read_run_files(tmp_path / "uninterrupted")


@pytest.mark.parametrize("workers", [0, long(1)])
def test_loader_of_torch_resumes_at_the_right_batch(workers, tmp_path, monkeypatch):
    """The interrupted run copies its batches as to an accelerator, which changes no byte."""

    def fit(directory, stop_after=None):
        torch.manual_seed(3)
        builder = LearnerBuilder(directory).num_epochs(2).seed(1).devices(["cpu"]).metrics(LossMetric())
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
        builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
        model = Net(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        collate = NormalizeBatcher().batch
        samples = MapperDataset(dataset(30), augmented)
        loader = torch.utils.data.DataLoader(
            samples, 8, shuffle=True, collate_fn=collate, num_workers=workers
        )
        builder.build(model, Adam(), 0.01).fit(loader, loader)

    fit(tmp_path / "uninterrupted")
    monkeypatch.setattr("stages.learner.batches.STREAM_DEVICES", ("cpu",))
    monkeypatch.setattr("stages.learner.batches.find_copier", PlainCopier)
    for stop_after in (2, 3, 2):
        fit(tmp_path / "interrupted", stop_after)
    fit(tmp_path / "interrupted")

    assert read_run_files(tmp_path / "interrupted") == read_run_files(tmp_path / "uninterrupted")


class Positioned:
    """A loader that can start at any batch, and counts the batches that it loads."""

    def __init__(self, batches):
        self.batches, self.position, self.loaded = batches, 0, 0

    def __len__(self):
        return len(self.batches)

    def set_position(self, position):
        self.position = position

    def __iter__(self):
        position, self.position = self.position, 0
        for batch in self.batches[position:]:
            self.loaded += 1
            yield batch


def test_loader_with_a_position_does_not_load_the_batches_before_it_again(tmp_path):
    def fit(stop_after=None):
        builder = LearnerBuilder(tmp_path).num_epochs(1).seed(1).devices(["cpu"]).checkpoint("auto")
        builder.with_file_checkpointer(NamedMpkGzFileRecorder())
        builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
        train, valid = (Positioned(list(loader)) for loader in loaders(0))
        builder.build(Net(nn.Linear(4, 3)), Adam(), 0.01).fit(train, valid)
        return train.loaded

    assert [fit(stop_after=3), fit()] == [3, TRAIN_BATCHES - 3]


class Augmented(torch.utils.data.Dataset):
    """Draws from the generator of the worker process."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.full((4,), index / 30) + 0.1 * torch.randn(4), index % 3


@pytest.mark.long  # the stop within validation above has workers and an augmentation
@pytest.mark.parametrize("persistent", [True, False])
def test_random_augmentation_in_workers_of_a_torch_loader_resumes_exactly(persistent, tmp_path, caplog):
    def fit(directory, stop_after=None):
        torch.manual_seed(3)
        builder = LearnerBuilder(directory).num_epochs(3).seed(1).devices(["cpu"]).metrics(LossMetric())
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
        builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
        loaders = [
            torch.utils.data.DataLoader(
                Augmented(), 8, shuffle=True, num_workers=2, persistent_workers=persistent
            )
            for _ in range(2)
        ]
        model = Net(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        builder.build(model, Adam(), 0.01).fit(*loaders)

    fit(tmp_path / "uninterrupted")
    for stop_after in (2, 4, 5):
        fit(tmp_path / "resumed", stop_after)
    fit(tmp_path / "resumed")

    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")
    assert ("are restarted for each epoch" in caplog.text) == persistent


class CrashIn(NoRenderer):
    """Fails in a step, counted over both splits, so that nothing is saved at the end of the run."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def step(self, progress):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("crash")


@pytest.mark.parametrize(
    ("every", "crash", "resumed"),
    [
        ({"steps": 1}, 1, None),
        long({"steps": 1}, 2, "in epoch 1, after batch 1 of training"),
        long({"steps": 1}, 7, "in epoch 1, after batch 1 of validation"),
        long({"steps": 1}, 9, "in epoch 2, after batch 1 of training"),
        long({"steps": 2}, 2, None),
        long({"steps": 2}, 4, "in epoch 1, after batch 2 of training"),
        long({"steps": 3}, 5, "in epoch 1, after batch 3 of training"),
        ({"steps": 3}, 7, "in epoch 1, after batch 1 of validation"),
        long({"steps": TRAIN_BATCHES}, 4, None),
        ({"steps": TRAIN_BATCHES}, 6, "in epoch 1, after batch 4 of training"),  # the last is not saved
        long({"steps": TRAIN_BATCHES + VALID_BATCHES}, 7, "in epoch 1, after batch 1 of validation"),
        ({"steps": 8}, 14, "after epoch 1"),  # which counts as a save
        ({"seconds": 1e-9}, 5, "in epoch 1, after batch 4 of training"),
        ({"seconds": 1e9}, 7, None),
    ],
)
def test_crash_repeats_at_most_the_steps_of_one_interval(every, crash, resumed, uninterrupted, tmp_path):
    def crashing(builder):
        return builder.checkpoint_every(**every).renderer(CrashIn(crash))

    with pytest.raises(RuntimeError, match="crash"):
        run(tmp_path, change=crashing)
    learner = run(tmp_path)

    assert learner.resumed == resumed
    assert read_run_files(tmp_path) == uninterrupted


class StepCheckpoints(NoRenderer):
    """Counts the checkpoints of steps in *directory* during each step."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.counts = directory, []

    def step(self, progress):
        self.counts.append(len(list(self.directory.glob("steps/trainer-*"))))


def test_previous_step_is_kept_until_the_next_one_is_written(tmp_path, uninterrupted):
    """From the third step on the first save is written; two exist only while one replaces the other."""
    seen, length = StepCheckpoints(tmp_path), TRAIN_BATCHES + VALID_BATCHES

    run(tmp_path, change=lambda builder: builder.checkpoint_every(steps=1).renderer(seen))

    counts = [count for step, count in enumerate(seen.counts) if step % length >= 2]
    assert set(counts) <= {1, 2}
    assert read_run_files(tmp_path) == uninterrupted


@pytest.mark.parametrize("broken", ["optim", "trainer", *map(long, ("model", "scheduler"))])
def test_corrupt_step_is_skipped_for_the_previous_epoch(broken, tmp_path, uninterrupted, caplog):
    run(tmp_path, stop_after=TRAIN_BATCHES + VALID_BATCHES + 2)
    for path in (tmp_path / "steps").glob(f"{broken}-*"):
        path.write_bytes(path.read_bytes()[:-9])

    learner = run(tmp_path)

    assert learner.epoch == EPOCHS
    assert "Passing over" in caplog.text
    assert read_run_files(tmp_path) == uninterrupted


def remove(path):
    path.unlink()


def shorten(path):
    path.write_text("1,8\n")


@pytest.mark.parametrize(
    ("split", "damage"),
    [("train", remove), ("valid", shorten), long("train", shorten), long("valid", remove)],
)
def test_epoch_whose_logs_changed_is_skipped_for_the_previous_one(
    split, damage, tmp_path, uninterrupted, caplog
):
    run(tmp_path, stop_after=2 * (TRAIN_BATCHES + VALID_BATCHES))
    damage(tmp_path / split / "epoch-2/Loss.log")

    learner = run(tmp_path)

    assert learner.resumed == "after epoch 1"
    assert f"{split}/epoch-2/Loss.log" in caplog.text
    assert read_run_files(tmp_path) == uninterrupted


def test_epoch_whose_logs_changed_cannot_be_chosen(tmp_path):
    run(tmp_path, stop_after=2 * (TRAIN_BATCHES + VALID_BATCHES))
    (tmp_path / "valid/epoch-2/Loss.log").unlink()

    with pytest.raises(
        CheckpointError, match=r"valid/epoch-2/Loss.log, a log .*, is missing. .* earlier checkpoint"
    ):
        run(tmp_path, change=lambda builder: builder.checkpoint(2))


class FullDisk(NamedMpkGzFileRecorder):
    """Fails for the checkpoint of *epoch*."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def record(self, item, path):
        if path.parent.name == "checkpoint" and path.name.endswith(f"-{self.epoch}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().record(item, path)


@pytest.mark.parametrize("lost", [EPOCHS - 1, EPOCHS])
def test_run_with_a_missing_checkpoint_fails_and_the_next_one_completes_it(lost, tmp_path, uninterrupted):
    with pytest.raises(CheckpointError, match=f"of epoch {lost} belongs to the result"):
        run(tmp_path, change=lambda builder: builder.with_file_checkpointer(FullDisk(lost)))

    learner = run(tmp_path)

    assert learner.resumed == f"after epoch {lost - 1}"
    assert read_run_files(tmp_path) == uninterrupted


def test_run_without_an_intact_checkpoint_does_not_start_over(tmp_path):
    run(tmp_path, stop_after=TRAIN_BATCHES + VALID_BATCHES + 2)
    for path in tmp_path.rglob("model-*"):
        path.write_bytes(b"")

    with pytest.raises(CheckpointError, match="found . checkpoints, none intact; refusing to start over"):
        run(tmp_path)


def test_run_with_more_epochs_resumes_from_the_last(tmp_path):
    def epochs(number):
        return lambda builder: builder.num_epochs(number).with_checkpointing_strategy(KeepLast(2))

    run(tmp_path / "two", change=epochs(2))
    grown = run(tmp_path / "two", change=epochs(3))
    run(tmp_path / "three", change=epochs(3))

    assert grown.resumed == "after epoch 2"
    assert read_run_files(tmp_path / "two") == read_run_files(tmp_path / "three")


def test_incomplete_checkpoint_of_a_killed_run_is_removed(tmp_path, uninterrupted):
    run(tmp_path)
    (tmp_path / "checkpoint" / "model-9.mpk.gz").write_bytes(b"half")
    (tmp_path / "checkpoint" / marker_name(9)).touch()
    (tmp_path / "checkpoint" / ".optim-3.mpk.gz.part").write_bytes(b"half")

    run(tmp_path)

    assert read_run_files(tmp_path) == uninterrupted


def test_checkpoint_of_another_run_is_rejected(tmp_path):
    run(tmp_path, change=lambda builder: builder.identity("one"))

    with pytest.raises(CheckpointError, match="belongs to run one, but this is run other"):
        run(tmp_path, change=lambda builder: builder.identity("other"))


class StopAfterBatches:
    """Interrupts the run after a number of batches of training, skipped ones too."""

    def __init__(self, interrupter, batches):
        self.interrupter, self.batches = interrupter, batches

    def after_step(self, context):
        self.batches -= 1
        if self.batches == 0:
            self.interrupter.stop("the test")


@pytest.mark.parametrize("skipped", [(2, 3, 4, 5), (1, 3, 4), (4, 5)])
@pytest.mark.parametrize("stops", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("window", [1, 4])
def test_skipped_batches_lose_nothing_of_a_resumed_epoch(window, stops, skipped, tmp_path):
    """They may be all that follows: no value has the types of the sums, and only the window has gradients."""
    batches = [(torch.randn(4, 4), torch.arange(4) % 3) for _ in range(TRAIN_BATCHES)]
    for number in skipped:
        batches[number - 1][0].fill_(float("nan"))

    def train(directory, stop=0):
        torch.manual_seed(3)
        builder = LearnerBuilder(directory).num_epochs(2).seed(1).devices(["cpu"]).renderer(NoRenderer())
        builder.metrics(LossMetric(), PrecisionMetric(), AurocMetric(), LearningRateMetric())
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
        builder.grads_accumulation(window).non_finite(NonFinite(kind="skip"))
        builder.hooks(StopAfterBatches(builder.interrupter(), stop))
        builder.build(Net(nn.Linear(4, 3)), Adam(), 0.05).fit(batches)
        return read_run_files(directory)

    for stop in stops:
        train(tmp_path / "resumed", stop)

    assert train(tmp_path / "resumed") == train(tmp_path / "straight")
