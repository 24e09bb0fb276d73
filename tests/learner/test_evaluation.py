"""The evaluation of a trained model on named data sets."""

import pytest

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.learner import EvaluatorBuilder, confusion_cells
from stages.metrics import AccuracyMetric, LossMetric
from stages.renderers import PlainRenderer


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


def test_logs_go_to_a_folder_of_the_name_without_epochs(evaluator, tiny, tmp_path, capsys):
    made, _ = evaluator

    made.eval(" Valid set ", tiny[1]()[1])

    assert (tmp_path / "test/valid-set/Loss.log").read_text().count("\n") == 2
    assert "| Test (valid-set) | Accuracy |" in capsys.readouterr().out


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


def test_failed_confusion_matrix_is_a_warning(train, tiny, tmp_path, caplog):
    learner = train(tmp_path)

    def fail(batch):
        raise MemoryError("50000 x 50000")

    learner.model.valid_step = fail

    assert confusion_cells(learner, tiny[1]()[1], seed=1) == []
    assert "the confusion matrix cannot be computed: MemoryError('50000 x 50000')" in caplog.text
