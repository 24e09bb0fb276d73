"""The evaluation of a trained model on named data sets."""

import pytest

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.learner import EvaluatorBuilder
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
