"""Loaders of streams: without a length, with a position that is saved, and the limit of a pass."""

import datasets
import pytest
import torch
from feed import Feed
from long_tests import covering_cases, long
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from stages.contracts.errors import BuilderError, RecordError
from stages.contracts.history import Split
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import EvaluatorBuilder, LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.records import DefaultRecorder


class Stream(IterableDataset):
    """Random samples: *count* of them, or no end."""

    def __init__(self, count=None):
        self.count = count

    def __iter__(self):
        index = 0
        while self.count is None or index < self.count:
            yield torch.rand(4), index % 2
            index += 1


class StatefulLoader(DataLoader):
    """Six batches in an order that changes with each pass, which is a part of the saved position."""

    def __init__(self):
        super().__init__(Stream())
        self.order = torch.arange(6)
        self.position = 0
        self.is_loaded = False

    def __iter__(self):
        if not self.is_loaded:
            self.order, self.position = torch.randperm(6), 0
        self.is_loaded = False
        while self.position < 6:
            number, self.position = self.order[self.position], self.position + 1
            yield torch.full((2, 4), float(number)), torch.tensor([0, 1])

    def state_dict(self):
        return {"order": self.order, "position": self.position}

    def load_state_dict(self, state):
        self.order, self.position, self.is_loaded = state["order"], state["position"], True


def make_hugging_face():
    rows = [{"x": [i % 7, i % 5, i % 3, 1.0], "y": i % 2} for i in range(12)]
    dataset = datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=2)
    return DataLoader(dataset.with_format("torch"), batch_size=2, collate_fn=stack)


def stack(items):
    return torch.stack([each["x"] for each in items]), torch.stack([each["y"] for each in items])


STATEFUL = {
    "dataset": lambda: DataLoader(Feed(), batch_size=2),
    "loader": StatefulLoader,
    "hugging face": make_hugging_face,
}


class Net(ClassificationStep, nn.Linear):
    """A classifier that can interrupt its run."""

    def __init__(self):
        super().__init__(4, 2)
        self.seen = {Split.TRAIN: 0, Split.VALID: 0}
        self.interrupt_after = None

    def train_step(self, batch):
        self.seen[Split.TRAIN] += 1
        if self.seen[Split.TRAIN] == self.interrupt_after:
            self.interrupter.stop()
        return super().train_step(batch)

    def valid_step(self, batch):
        self.seen[Split.VALID] += 1
        return super().valid_step(batch)


def fit(directory, train, valid, *, limits=None, interrupt_after=None):
    torch.manual_seed(0)
    model = Net()
    builder = LearnerBuilder(directory).metrics(LossMetric()).devices(["cpu"]).seed(1).num_epochs(3)
    builder.with_file_checkpointer(DefaultRecorder()).checkpoint("auto").limit_batches(**limits or {})
    model.interrupter, model.interrupt_after = builder.interrupter(), interrupt_after
    builder.build(model, torch.optim.SGD(model.parameters(), 0.1)).fit(train, valid)
    return model


def loaders(count):
    return [DataLoader(Stream(count), batch_size=2) for _ in Split]


def files(folder):
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "experiment.log")
    return {path.relative_to(folder): path.read_bytes() for path in found if "telemetry" not in path.parts}


def test_pass_lasts_until_the_end_of_the_stream(tmp_path):
    model = fit(tmp_path, *loaders(10))

    assert model.seen == {Split.TRAIN: 15, Split.VALID: 15}


def test_limit_is_the_length_of_an_epoch_of_an_endless_stream(tmp_path):
    model = fit(tmp_path, *loaders(None), limits={"train": 4, "valid": 2})

    assert model.seen == {Split.TRAIN: 12, Split.VALID: 6}


LIMITS = {"train": 5, "valid": 2}


@pytest.mark.parametrize(
    ("count", "limits", "interrupt_after"),
    [
        (10, {}, 3),
        (None, LIMITS, 5),
        (10, {}, 7),
        long(None, LIMITS, 3),
        long(10, {}, 5),
        long(None, LIMITS, 7),
    ],
)
def test_run_interrupted_in_a_stream_resumes_exactly(tmp_path, count, limits, interrupt_after):
    fit(tmp_path / "resumed", *loaders(count), limits=limits, interrupt_after=interrupt_after)
    fit(tmp_path / "resumed", *loaders(count), limits=limits)
    fit(tmp_path / "whole", *loaders(count), limits=limits)

    assert files(tmp_path / "resumed") == files(tmp_path / "whole")


@pytest.mark.parametrize(("name", "interrupt_after"), covering_cases([*STATEFUL], [3, 6, 9], strength=1))
def test_run_interrupted_in_a_stream_with_a_position_resumes_exactly(tmp_path, caplog, name, interrupt_after):
    """Batch 6 is the last of the first epoch. Hugging Face's state depends on the position it began at."""
    make, ignored = STATEFUL[name], ("trainer",) if name == "hugging face" else ()
    fit(tmp_path / "resumed", make(), make(), interrupt_after=interrupt_after)
    fit(tmp_path / "resumed", make(), make())
    fit(tmp_path / "whole", make(), make())

    made, expected = (
        {path: data for path, data in files(tmp_path / each).items() if not path.name.startswith(ignored)}
        for each in ("resumed", "whole")
    )
    assert made == expected
    assert "cannot be saved" not in caplog.text


class Sized(Stream):
    """Samples whose number is not their length, which torch takes for that of the loader."""

    def __init__(self, count, length):
        super().__init__(count)
        self.length = length

    def __len__(self):
        return self.length


class Batches:
    """Four batches with a length of another number."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter([(torch.rand(2, 4), torch.tensor([0, 1])) for _ in range(4)])

    def __len__(self):
        return self.length


class Buckets:
    """A sampler of four batches that estimates their number, as one that fills batches by tokens does."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter([[0, 1], [2, 3], [4, 5], [6, 7]])

    def __len__(self):
        return self.length


SAMPLES = [(torch.full((4,), 0.1 * number), number % 2) for number in range(8)]
INEXACT = [
    lambda length: DataLoader(Sized(8, 2 * length), 2),
    lambda length: DataLoader(SAMPLES, batch_sampler=Buckets(length)),
    Batches,
]


@pytest.mark.parametrize("length", [3, 9])
@pytest.mark.parametrize("make", INEXACT)
@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_run_interrupted_after_the_last_batch_of_a_loader_with_another_length_resumes(make, length, tmp_path):
    fit(tmp_path / "whole", make(length), make(length))
    fit(tmp_path / "run", make(length), make(length), interrupt_after=4)

    fit(tmp_path / "run", make(length), make(length))

    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.parametrize("make", INEXACT)
@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_run_interrupted_at_a_limit_above_the_length_of_its_loader_resumes(make, tmp_path):
    limits = {"train": 3, "valid": 3}
    fit(tmp_path / "whole", make(2), make(2), limits=limits)
    fit(tmp_path / "run", make(2), make(2), limits=limits, interrupt_after=3)

    fit(tmp_path / "run", make(2), make(2), limits=limits)

    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_batches_before_a_saved_position_are_not_read_again(tmp_path):
    fit(tmp_path, *(DataLoader(Feed(), batch_size=2) for _ in Split), interrupt_after=4)
    resumed = DataLoader(Feed(), batch_size=2)
    numbers = []
    resumed.collate_fn = lambda items: numbers.append(len(items)) or default_collate(items)

    fit(tmp_path, resumed, DataLoader(Feed(), batch_size=2))

    assert len(numbers) == 3 * 6 - 4


def test_state_of_a_stream_that_no_checkpoint_can_hold_is_an_error(tmp_path):
    stream = Feed()
    stream.state_dict = lambda: {"next": object()}

    with pytest.raises(RecordError, match=r"state_dict\(\) of Feed\['next'\] is of the type object"):
        fit(tmp_path, DataLoader(stream, batch_size=2), [(torch.rand(2, 4), torch.ones(2).long())])


@pytest.mark.parametrize(("stream", "workers"), [(Stream(10), 0), (Feed(), 1)])
def test_stream_whose_position_cannot_be_saved_is_reported(tmp_path, caplog, stream, workers):
    fit(
        tmp_path,
        DataLoader(stream, batch_size=2, num_workers=workers),
        [(torch.rand(2, 4), torch.ones(2).long())],
    )

    assert (
        f"the position in {type(stream).__name__} cannot be saved: a run that resumes within" in caplog.text
    )
    assert "no workers, or torchdata's StatefulDataLoader" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_limit_applies_to_loaders_of_this_package_and_their_workers(tmp_path, workers):
    samples = TensorDataset(torch.rand(40, 4), torch.arange(40) % 2)
    made = DataLoaderBuilder(NormalizeBatcher()).batch_size(4).num_workers(workers).shuffle(1).build(samples)

    model = fit(tmp_path, made, made, limits={"train": 3})

    assert model.seen == {Split.TRAIN: 9, Split.VALID: 30}


def test_stream_without_batches_is_an_error(tmp_path):
    with pytest.raises(BuilderError, match="a loader has no batches"):
        fit(tmp_path, *loaders(0))


def test_iterator_is_refused_because_it_ends_after_one_pass(tmp_path):
    with pytest.raises(BuilderError, match="a loader is an iterator, generator, which ends after one pass"):
        fit(tmp_path, (each for each in [1]), [])


def test_evaluation_reads_a_stream_to_its_end(tmp_path):
    model = Net()

    values = EvaluatorBuilder(tmp_path).metrics(LossMetric()).build(model).eval("stream", loaders(6)[0])

    assert (model.seen[Split.VALID], set(values)) == (3, {"Loss"})


def test_limit_below_1_is_rejected(tmp_path):
    with pytest.raises(BuilderError, match="limit_batches.0.: pass an integer from 1"):
        LearnerBuilder(tmp_path).limit_batches(valid=0)
