"""The evaluation of a trained model on named data sets."""

import pytest
import torch
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.contracts.step_log import current_log
from stages.data import DataLoaderBuilder, TensorDataset
from stages.learner import EvaluatorBuilder, Hook, confusion_cells, confusion_matrix
from stages.loggers import ExperimentLog
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.renderers import NoRenderer, PlainRenderer


@pytest.fixture
def evaluator(train, tmp_path):
    learner = train(tmp_path)
    builder = EvaluatorBuilder(tmp_path).metrics(AccuracyMetric(), LossMetric()).device("cpu")
    return builder.renderer(PlainRenderer()).summary().build(learner.model), learner


def test_evaluation_returns_the_values_of_validation(evaluator, tiny):
    made, learner = evaluator

    values = made.eval("Valid set", tiny[1]()[1])

    last = learner.epoch
    assert values == {name: learner.history.series(Split.VALID, name)[last] for name in ("Accuracy", "Loss")}


class Logging(ClassificationStep, nn.Sequential):
    def loss(self, logits, targets):
        self.log("norm", logits.square().mean())
        return super().loss(logits, targets)


@pytest.mark.parametrize("event", ["before_epoch", "after_step"])
def test_evaluation_in_a_hook_does_not_change_the_training(event, start, tiny, tmp_path):
    def evaluate(hook, context):
        builder = EvaluatorBuilder(tmp_path).metrics(LossMetric()).device("cpu").renderer(NoRenderer())
        builder.build(context.model).eval("all", tiny[1]()[1])
        confusion_matrix(context.model, tiny[1]()[1], seed=context.step, should_stop=lambda: False)
        torch.manual_seed(context.step)

    def seed(hook, context):
        torch.manual_seed(context.step)

    def train(name, call):
        hook = type("Evaluate", (Hook,), {event: call})()
        learner = start(tmp_path / name).hooks(hook).build(Logging(*tiny[0]()), Adam(), 0.05)
        learner.fit(*tiny[1]())
        return list(learner.history)

    assert train("with", evaluate) == train("without", seed)


def test_numbers_of_a_step_are_not_kept_after_a_run_that_fails(start, tiny, tmp_path):
    class Failing(Hook):
        def after_step(self, context):
            raise KeyboardInterrupt

    learner = start(tmp_path).hooks(Failing()).build(Logging(*tiny[0]()), Adam(), 0.05)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(*tiny[1]())

    assert current_log.get() is None


def test_logs_go_to_a_folder_of_the_name_without_epochs(evaluator, tiny, tmp_path, capsys):
    made, _ = evaluator

    made.eval(" Valid set ", tiny[1]()[1])

    assert (tmp_path / "test/valid-set/Loss.log").read_text().count("\n") == 2
    assert "| Test (valid-set) | Accuracy |" in capsys.readouterr().out


def test_summary_has_all_test_sets_and_the_epochs_of_the_directory(evaluator, tiny, capsys):
    valid = tiny[1]()[1]
    capsys.readouterr()

    values = evaluator[0].eval_all([("First", valid), ("second", valid)])

    printed = capsys.readouterr().out
    assert [*values] == ["First", "second"]
    assert values["First"] == values["second"]
    assert printed.count("= Learner Summary =") == 1
    assert printed.count("| Test (") == 4
    assert "| Train " in printed
    assert f"Total Epochs: {evaluator[1].epoch}" in printed


class Recorder:
    """A progress logger and a logger of metrics, which records its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *values: self.calls.append((name, *values))

    def log_metric_definition(self, definition):  # since Python 3.12, a protocol ignores `__getattr__`
        self.calls.append(("log_metric_definition", definition))


def test_loggers_of_an_evaluation_receive_progress_definitions_and_log_records(train, tiny, tmp_path):
    learner, progress, logger = train(tmp_path), Recorder(), Recorder()
    builder = EvaluatorBuilder(tmp_path).metric(LossMetric()).metric_numeric(AccuracyMetric()).device("cpu")
    builder.with_progress_logger(progress).metric_logger(logger).renderer(NoRenderer())
    log = ExperimentLog(tmp_path / "evaluation.log")

    values = builder.with_application_logger(lambda: log).build(learner.model).eval("a", tiny[1]()[1])

    assert [*values] == ["Accuracy"]
    assert [name for name, *_ in progress.calls if name != "log"] == ["start", "step", "step", "close"]
    definitions = [call[1] for call in logger.calls if call[0] == "log_metric_definition"]
    assert [(one.name, one.unit, one.better) for one in definitions] == [
        ("Loss", None, "lowest"),
        ("Accuracy", "%", "highest"),
    ]
    assert (tmp_path / "evaluation.log").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_name_that_cannot_be_a_folder_is_rejected(evaluator, tiny, name):
    with pytest.raises(BuilderError, match="is also that of a folder"):
        evaluator[0].eval(name, tiny[1]()[1])


def test_confusion_cells_count_every_sample_of_the_split(train, tiny, tmp_path):
    learner, valid = train(tmp_path), tiny[1]()[1]

    cells = confusion_cells(learner, valid, seed=1)

    hits = sum(count for target, predicted, count in cells if target == predicted)
    accuracy = learner.history.value(learner.epoch, Split.VALID, "Accuracy")
    assert sum(count for *_, count in cells) == 11
    assert 100 * hits / 11 == pytest.approx(accuracy)


def test_confusion_cells_are_those_of_the_samples_of_the_last_epoch(train, tmp_path):
    """A run that is resumed after its last epoch, to be published, has opened no loader."""
    learner = train(tmp_path)
    images = TensorDataset(torch.randn(40, 4, 1, 1), torch.arange(40) % 3)
    loaders = DataLoaderBuilder(Flatten()).batch_size(8).augment([torch.randn_like])
    trained, opened = loaders.build(images), loaders.build(images)
    trained.set_epoch(learner.epoch)

    cells = confusion_cells(learner, opened, seed=1)

    assert cells == confusion_cells(learner, trained, seed=1)
    assert len(cells) > 1


class Flatten:
    def batch(self, items):
        return torch.stack([inputs.flatten() for inputs, _ in items]), torch.stack(
            [target for _, target in items]
        )


def test_failed_confusion_matrix_is_a_warning(train, tiny, tmp_path, caplog):
    learner = train(tmp_path)

    def fail(batch):
        raise MemoryError("50000 x 50000")

    learner.model.valid_step = fail

    assert confusion_cells(learner, tiny[1]()[1], seed=1) == []
    assert "the confusion matrix cannot be computed: MemoryError('50000 x 50000')" in caplog.text


def test_confusion_matrix_of_many_batches_counts_every_sample_in_a_few_blocks():
    draws = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(400, 3, generator=draws), torch.randint(3, (400,), generator=draws)
    model = type("Net", (ClassificationStep, torch.nn.Identity), {})()
    loader = list(zip(logits.split(2), targets.split(2), strict=True))

    matrix = confusion_matrix(model, loader, seed=0, should_stop=lambda: False)

    expected = torch.zeros(3, 3, dtype=torch.int64)
    expected.index_put_((targets, logits.argmax(1)), torch.ones(400, dtype=torch.int64), accumulate=True)
    assert matrix.cells() == [
        (row, column, int(expected[row, column])) for row in range(3) for column in range(3)
    ]
    assert len(list(matrix.blocks)) == 200 // 64 + 200 % 64
