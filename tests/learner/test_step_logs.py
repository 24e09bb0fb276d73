"""Numbers and samples that steps log, in every output of a run, exactly after a resume and over ranks."""

import json
import zlib

import numpy as np
import pytest
import torch
from rank_runs import build_net, dataset, outcome, start
from ranks import run_ranks
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.data import DataLoaderBuilder, NormalizeBatcher
from stages.learner import EvaluatorBuilder
from stages.learner.metering import Meter
from stages.loggers import (
    InMemoryMetricLogger,
    JsonLinesMetricLogger,
    TsvMetricLogger,
    read_history,
)
from stages.metrics import LossMetric, ScalarMetric
from stages.models import ClassificationStep
from stages.optim import Adam, Lbfgs, NonFinite, Sgd
from stages.renderers import NoRenderer
from stages.runs import MetricEarlyStopping

TRAIN_BATCHES, VALID_BATCHES = 5, 2
STOPS = (
    2,
    TRAIN_BATCHES,
    TRAIN_BATCHES + 1,
    TRAIN_BATCHES + VALID_BATCHES,
    TRAIN_BATCHES + VALID_BATCHES + 3,
)


def loaders():
    """Return the loaders of five batches of training, shuffled, and of two of validation."""
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(16)
    valid = builder.build(dataset(29))
    return builder.shuffle(5).build(dataset(77)), valid


class Net(ClassificationStep, nn.Sequential):
    """Logs a number in each step, one in some steps, one from epoch 2 on, and samples."""

    def forward_classification(self, batch):
        output = super().forward_classification(batch)
        inputs, targets = batch
        self.log("first input", inputs[0, 0], weight=len(inputs))
        if inputs[0, 0] > 0:
            self.log("sometimes", inputs[:, 1].mean())
        self.log_image("inputs", inputs[:3].reshape(-1, 1, 2, 2).sigmoid())
        self.log_text("targets", f"{targets.tolist()}\n")
        return output

    def train_step(self, batch):
        if self[0].weight.grad_fn is None and self.epoch_of_run > 1:
            self.log("late", 2.0)
        return super().train_step(batch)

    epoch_of_run = 0


class CountEpochs:
    def before_epoch(self, context):
        context.model.epoch_of_run = context.epoch


def build(kind=Net):
    return kind(*build_net())


def run(directory, *, kind=Net, stop_after=None, change=lambda builder: builder):
    builder = change(start(directory, 3)).checkpoint("auto").hooks(CountEpochs()).renderer(NoRenderer())
    if stop_after:
        builder.renderer(StopAfter(builder.interrupter(), stop_after))
    learner = builder.build(build(kind), Adam(), 0.05)
    learner.fit(*loaders())
    return learner


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, run(directory)


def read_png(content):
    """Return the gray values of a PNG without filters."""
    width, height = (int.from_bytes(content[start : start + 4]) for start in (16, 20))
    begin = content.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(content[begin:-16]), np.uint8).reshape(height, width + 1)
    return lines[:, 1:]


def test_number_is_the_exact_mean_over_the_epoch(uninterrupted):
    _, learner = uninterrupted
    batches = [(inputs, targets) for inputs, targets in loaders()[1]]

    value = learner.history.value(3, Split.VALID, "first input")

    total = sum(float(inputs[0, 0]) * len(inputs) for inputs, _ in batches)
    assert value == pytest.approx(total / sum(len(inputs) for inputs, _ in batches), abs=1e-12)


def test_number_of_some_steps_is_the_mean_over_these(uninterrupted):
    directory, learner = uninterrupted
    logged = [inputs for inputs, _ in loaders()[1] if inputs[0, 0] > 0]
    means = [(float(inputs[:, 1].mean()), len(inputs)) for inputs in logged]

    lines = (directory / "valid/epoch-1/sometimes.log").read_text().splitlines()

    assert 0 < len(lines) == len(means) < VALID_BATCHES
    expected = sum(mean * size for mean, size in means) / sum(size for _, size in means)
    assert learner.history.value(1, Split.VALID, "sometimes") == pytest.approx(expected)


def read_rows(directory):
    """Return the iteration and the name of each value of a batch in the tables of training."""
    lines = (directory / "train.tsv").read_text().splitlines()[1:]
    cells = [line.split("\t") for line in lines]
    objects = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    rows = [(int(iteration), name) for _, iteration, name, *_ in cells if iteration]
    assert rows == [(row["iteration"], row["name"]) for row in objects if row["iteration"]]
    return rows


@pytest.mark.parametrize("stop_after", [None, 3])
def test_value_in_a_table_has_the_number_of_its_batch(stop_after, tmp_path):
    """The second batch logs no number, and the fourth is skipped because its loss is not finite."""
    inputs = torch.ones(6, 2, 4)
    inputs[1], inputs[3, 0, 1] = -1.0, float("nan")
    batches = [(rows, torch.arange(2)) for rows in inputs]
    for stop in (stop_after, None):
        builder = start(tmp_path, 1).checkpoint("auto").non_finite(NonFinite(kind="skip"))
        for kind in (TsvMetricLogger, JsonLinesMetricLogger):
            builder.add_metric_loggers(kind(tmp_path / f"train{kind.suffix}"), InMemoryMetricLogger())
        if stop:
            builder.renderer(StopAfter(builder.interrupter(), stop))
        builder.build(Net(*build_net()), Adam(), 0.05).fit(batches, batches[:1])

    rows = read_rows(tmp_path)

    assert [number for number, name in rows if name == "Loss"] == [1, 2, 3, 5, 6]
    assert [number for number, name in rows if name == "sometimes"] == [1, 3, 5, 6]


def test_number_that_is_first_logged_in_a_later_epoch_has_values_from_there_on(uninterrupted):
    _, learner = uninterrupted

    assert learner.history.series(Split.TRAIN, "late") == {2: 2.0, 3: 2.0}
    assert learner.history.series(Split.VALID, "late") == {}


def test_history_of_the_logs_has_the_same_numbers(uninterrupted):
    directory, learner = uninterrupted

    history = read_history(directory)

    for name in ("first input", "sometimes", "late"):
        expected = learner.history.series(Split.TRAIN, name)
        assert history.series(Split.TRAIN, name) == pytest.approx(expected)


def test_first_samples_of_each_epoch_are_files(uninterrupted):
    directory, _ = uninterrupted
    folder = directory / "valid/epoch-2"
    inputs, targets = next(iter(loaders()[1]))

    found = sorted(path.name for path in folder.glob("*") if path.suffix != ".log")

    assert found == [*(f"inputs-{n}.png" for n in range(1, 5)), "targets-1.txt", "targets-2.txt"]
    assert (folder / "targets-1.txt").read_text() == f"{targets.tolist()}\n"
    pixels = (inputs[0].reshape(2, 2).sigmoid() * 255).round()
    assert np.array_equal(read_png((folder / "inputs-1.png").read_bytes()), pixels.numpy())


def test_logging_changes_no_weight_and_no_other_file(uninterrupted, tmp_path):
    class Silent(ClassificationStep, nn.Sequential):
        pass

    directory, learner = uninterrupted
    silent = run(tmp_path, kind=Silent)

    assert outcome(silent)[1] == outcome(learner)[1]
    files, others = read_run_files(directory), read_run_files(tmp_path)
    assert {name: files[name] for name in others if name.endswith(".log")} == {
        name: content for name, content in others.items() if name.endswith(".log")
    }


@pytest.mark.parametrize("stop_after", STOPS)
def test_resumed_run_has_the_same_numbers_and_samples(stop_after, uninterrupted, tmp_path):
    run(tmp_path, stop_after=stop_after)
    run(tmp_path, stop_after=1)
    run(tmp_path)

    assert read_run_files(tmp_path) == read_run_files(uninterrupted[0])


def test_samples_after_the_checkpoint_are_removed_on_resume(uninterrupted, tmp_path):
    """A kill leaves samples of batches that run again, and of a later epoch."""
    run(tmp_path, stop_after=1)
    (tmp_path / "train/epoch-1/inputs-4.png").write_bytes(b"a later one")
    (tmp_path / "valid/epoch-1").mkdir(parents=True)
    (tmp_path / "valid/epoch-1/other-1.txt").write_text("of the validation")
    run(tmp_path)

    assert read_run_files(tmp_path) == read_run_files(uninterrupted[0])


class Batch(ClassificationStep, nn.Sequential):
    """Logs numbers whose mean over ranks is that of one process."""

    def forward_classification(self, batch):
        inputs, _ = batch
        self.log("mean", inputs.mean(), weight=inputs.numel())
        if inputs[0, 0] > 0:
            self.log("positive", inputs[0, 0])
        return super().forward_classification(batch)


def fit_batch(directory):
    learner = start(directory).build(build(Batch), Adam(), 0.05)
    learner.fit(*loaders())
    return outcome(learner)[0]


def test_numbers_of_ranks_are_added(tmp_path):
    one = fit_batch(tmp_path / "one")

    first, second = run_ranks(fit_batch, 2, tmp_path / "ranks")

    assert first == second
    assert first["train mean"] == pytest.approx(one["train mean"])
    assert len(first["valid positive"]) == 2


def test_declared_scalar_takes_the_number_and_can_stop_the_run(tmp_path):
    rule = MetricEarlyStopping(metric="mean", direction="lowest", n_epochs=1)

    learner = run(
        tmp_path,
        kind=Batch,
        change=lambda builder: builder.metrics(ScalarMetric("mean")).early_stopping(rule),
    )

    values = learner.history.series(Split.VALID, "mean")
    assert (learner.epoch, len(values)) == (2, 2)  # the mean of the inputs does not improve


def test_evaluation_has_what_steps_log(tmp_path):
    values = (
        EvaluatorBuilder(tmp_path)
        .metrics(LossMetric())
        .renderer(NoRenderer())
        .build(build())
        .eval("valid", loaders()[1])
    )

    assert {"Loss", "first input", "sometimes"} == values.keys()
    assert (tmp_path / "test/valid/inputs-1.png").exists()


class Wrong(ClassificationStep, nn.Sequential):
    calls = ()

    def train_step(self, batch):
        for method, arguments in self.calls:
            getattr(self, method)(*arguments)
        return super().train_step(batch)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("log", ("Loss", 1.0), "a step logs 'Loss', the name of a metric. Use another name"),
        ("log", ("a", torch.ones(2)), r"metric 'a': the value must be one number; found shape \(2,\)"),
        ("log", ("a/b", 1.0), "a metric is named 'a/b', which cannot be the name of a file"),
        ("log_text", ("../a", "text"), "which cannot be the name of a file"),
        ("log_image", ("a", torch.ones(2, 4, 4)), r"1 or 3 channels; found \(2, 4, 4\)"),
        ("log_image", ("a", torch.ones(4)), r"found \(4,\)"),
    ],
)
def test_what_cannot_be_logged_is_one_message(method, arguments, message, tmp_path):
    model = build(Wrong)
    model.calls = [(method, arguments)]

    with pytest.raises(BuilderError, match=message):
        start(tmp_path).renderer(NoRenderer()).build(model, Sgd(), 0.1).fit(*loaders())


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (torch.tensor([[0.0, 0.5], [1.0, 7.0]]), [[0, 128], [255, 255]]),
        (torch.tensor([[[0, 128], [255, 300]]]), [[0, 128], [255, 255]]),
        (torch.tensor([[False, True]]), [[0, 255]]),
        (torch.tensor([[float("nan"), float("inf")]]), [[0, 255]]),
    ],
)
def test_values_of_images_are_scaled_to_bytes(image, expected, tmp_path):
    model = build(Wrong)
    model.calls = [("log_image", ("a", image))]

    start(tmp_path, 1).renderer(NoRenderer()).build(model, Sgd(), 0.1).fit(*loaders())

    assert read_png((tmp_path / "train/epoch-1/a-1.png").read_bytes()).tolist() == expected


def test_step_outside_of_a_run_logs_nothing():
    model = build()

    assert model.valid_step(next(iter(loaders()[1]))).size > 0


class FirstOnly(ClassificationStep, nn.Sequential):
    """Logs a number in the first two evaluations of L-BFGS, and none later."""

    evaluations = 0

    def train_step(self, batch):
        self.evaluations += 1
        if self.evaluations <= 2:
            self.log("evaluation", float(self.evaluations))
        return super().train_step(batch)


def test_only_the_measured_evaluation_of_l_bfgs_logs(tmp_path):
    learner = start(tmp_path, 1).renderer(NoRenderer()).build(build(FirstOnly), Lbfgs(max_iter=3), 0.1)

    learner.fit(*loaders())

    assert (tmp_path / "train/epoch-1/evaluation.log").read_text() == "1,16\n"


def test_samples_are_those_of_the_first_batches_with_lbfgs(tmp_path):
    """The further evaluations of a batch log nothing, so each of four batches has a text."""
    learner = start(tmp_path, 1).renderer(NoRenderer()).build(build(), Lbfgs(max_iter=3), 0.1)
    train, valid = loaders()
    learner.fit(train, valid)

    train.set_epoch(1)
    targets = [f"{batch.targets.tolist()}\n" for batch in train]
    texts = sorted((tmp_path / "train/epoch-1").rglob("targets-*.txt"))
    assert [path.read_text() for path in texts] == targets[:4]


def test_batch_that_is_skipped_logs_nothing(tmp_path):
    class Infinite(ClassificationStep, nn.Sequential):
        def loss(self, logits, targets):
            mean = logits.mean()
            self.log("mean", mean)
            self.log_text("text", f"{mean}")
            if mean < -0.19:  # in the first batches
                self.log("low", mean)
                return logits.sum() * float("inf")
            return super().loss(logits, targets)

    builder = start(tmp_path, 1).non_finite(NonFinite(kind="skip", limit=9)).renderer(NoRenderer())
    learner = builder.build(build(Infinite), Sgd(), 1e-4)
    learner.fit(loaders()[0])

    measured = len((tmp_path / "train/epoch-1/mean.log").read_text().splitlines())
    assert 0 < measured < TRAIN_BATCHES
    assert "low" not in learner.history.metrics()
    texts = {path.name for path in (tmp_path / "train/epoch-1").glob("text-*")}
    assert texts == {f"text-{number}.txt" for number in range(1, measured + 1)}


def test_step_without_samples_of_this_rank_logs_nothing():
    logger = InMemoryMetricLogger()
    meter = Meter([], NoRenderer(), Split.TRAIN, 1, log_loggers=[logger])
    meter.begin()
    output = build().valid_step(next(iter(loaders()[1])))
    meter.measure(None, 1, 0.0)
    meter.measure(output, 2, 0.0)

    assert meter.finish() == {}
