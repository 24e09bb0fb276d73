"""Averages of the weights: their formulas, their validation, their resume, and the checkpoints with them."""

import pytest
import torch
from long_tests import covering_cases
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_swa_avg_fn

from stages.contracts.history import Split
from stages.learner import EvaluatorBuilder, state_dict_of, use_average
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, Ema, Lbfgs, Swa, WeightAverage
from stages.records import DefaultRecorder, load_into
from stages.renderers import NoRenderer
from stages.runs import FileCheckpointer

AVERAGES = {
    "ema": Ema(decay=0.8),
    "ema from epoch 2": Ema(decay=0.8, start_epoch=2),
    "swa": Swa(start_epoch=2),
}
STEPS = {"training": 8, "validation of epoch 2": 11, "validation of epoch 3": 17}
"""Numbers of steps after which a run of 3 epochs, each of 4 and 2 batches, is interrupted."""


class Net(ClassificationStep, nn.Sequential):
    """A model with running statistics."""


def net():
    torch.manual_seed(3)
    return Net(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def run(start, tiny, averaging, directory, *, stop_after=None, optimizer=None, configure=lambda b: b):
    """Train, or resume, and return the learner; *stop_after* is the number of steps to interrupt after."""
    builder = configure(start(directory).checkpoint("auto"))
    if averaging:
        builder.average_weights(averaging)
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    model = net()
    learner = builder.build(model, optimizer(model) if optimizer else Adam(), 0.05)
    learner.fit(*tiny[1]())
    return learner


def floats(state):
    return {name: each.clone() for name, each in state.items() if each.is_floating_point()}


def averaged(learner):
    with learner.apply_average():
        return floats(learner.model.state_dict())


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(each, other[name]) for name, each in one.items())


@pytest.mark.parametrize(("name", "stop"), covering_cases([*AVERAGES], [*STEPS], strength=1))
def test_resumed_run_equals_uninterrupted_run(start, tiny, tmp_path, name, stop):
    run(start, tiny, AVERAGES[name], tmp_path / "uninterrupted")

    run(start, tiny, AVERAGES[name], tmp_path / "resumed", stop_after=STEPS[stop])
    learner = run(start, tiny, AVERAGES[name], tmp_path / "resumed")

    assert stop.partition(" ")[0] in learner.resumed
    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_are_those_of_torch(start, tiny, tmp_path, name):
    averaging, references = AVERAGES[name], []
    formula = get_ema_avg_fn(0.8) if name.startswith("ema") else get_swa_avg_fn()

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        reference = AveragedModel(model, avg_fn=formula, use_buffers=True)
        references.append(reference)
        steps = iter(range(1, 100))

        def update(*_):
            number = next(steps)
            is_step = name.startswith("ema") or number % 4 == 0
            if is_step and number > 4 * (averaging.start_epoch - 1):
                reference.update_parameters(model)

        made.register_step_post_hook(update)
        return made

    learner = run(start, tiny, averaging, tmp_path, optimizer=optimizer)

    expected = floats(references[0].module.state_dict())
    assert {*expected} >= {"0.weight", "1.running_mean"}
    assert all(torch.allclose(each, expected[name]) for name, each in averaged(learner).items())


@pytest.mark.parametrize("name", AVERAGES)
def test_training_continues_with_its_own_weights(start, tiny, tmp_path, name):
    plain = run(start, tiny, None, tmp_path / "plain")

    learner = run(start, tiny, AVERAGES[name], tmp_path / "averaged")

    assert_equal(learner.model.state_dict(), plain.model.state_dict())
    assert not torch.equal(averaged(learner)["0.weight"], plain.model[0].weight)


@pytest.mark.parametrize("name", AVERAGES)
def test_validation_measures_the_average(start, tiny, tmp_path, name):
    learner = run(start, tiny, AVERAGES[name], tmp_path)

    evaluator = EvaluatorBuilder(tmp_path).metrics(LossMetric()).renderer(NoRenderer()).device("cpu")
    with learner.apply_average():
        values = evaluator.build(learner.model).eval("valid", tiny[1]()[1])
    assert values["Loss"] == learner.history.value(3, Split.VALID, "Loss")


def test_epochs_before_the_first_average_validate_the_weights_of_the_training(start, tiny, tmp_path):
    plain = run(start, tiny, None, tmp_path / "plain").history
    history = run(start, tiny, Swa(start_epoch=3), tmp_path / "averaged").history

    for epoch in (1, 2):
        assert history.value(epoch, Split.VALID, "Loss") == plain.value(epoch, Split.VALID, "Loss")
    assert history.value(3, Split.TRAIN, "Loss") == plain.value(3, Split.TRAIN, "Loss")


def test_mean_of_one_epoch_is_its_weights(start, tiny, tmp_path):
    learner = run(start, tiny, Swa(start_epoch=3), tmp_path)

    assert_equal(averaged(learner), floats(learner.model.state_dict()))


def test_checkpoint_has_the_weights_of_the_training_and_their_average(start, tiny, tmp_path):
    learner = run(start, tiny, AVERAGES["ema"], tmp_path)

    saved = FileCheckpointer(tmp_path / "checkpoint", DefaultRecorder()).restore(3)
    loaded = net()
    load_into(loaded, use_average(saved).model)

    assert_equal(floats(state_dict_of(saved)), floats(learner.model.state_dict()))
    assert_equal(floats(state_dict_of(use_average(saved))), averaged(learner))
    assert_equal(floats(loaded.state_dict()), averaged(learner))


def test_checkpoint_without_an_average_is_unchanged(start, tiny, tmp_path):
    run(start, tiny, None, tmp_path)

    saved = FileCheckpointer(tmp_path / "checkpoint", DefaultRecorder()).restore(3)
    assert "average" not in saved.trainer
    assert use_average(saved) is saved


def test_summary_names_the_average(start, tiny, tmp_path, capsys):
    run(start, tiny, Ema(decay=0.8), tmp_path, configure=lambda b: b.summary())

    assert "Average of the weights: ema, decay 0.8, start_epoch 1" in capsys.readouterr().out.splitlines()


def test_each_path_of_an_update_adds_to_the_average(start, tiny, tmp_path):
    """The fused kernel and the step of the optimizer give the same average; L-BFGS has one too."""
    fast = run(start, tiny, Ema(decay=0.8), tmp_path / "fast")
    slow = run(start, tiny, Ema(decay=0.8), tmp_path / "slow", configure=lambda b: b.fast_path("off"))
    lbfgs = run(start, tiny, Ema(decay=0.8), tmp_path / "lbfgs", optimizer=lambda _: Lbfgs(max_iter=2))

    assert_equal(averaged(fast), averaged(slow))
    assert not torch.equal(averaged(lbfgs)["0.weight"], lbfgs.model[0].weight)


@pytest.mark.parametrize(
    ("config", "expected"), [(Ema(decay=0.999), 1 - 0.999**2000), (Swa(start_epoch=1), 2000 / 2001)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_average_in_half_precision_does_not_stand_still(config, expected, dtype):
    model = torch.nn.Linear(1, 1, bias=False).to(dtype)
    average = WeightAverage(config, model)
    with torch.no_grad():
        for step in range(2001):
            model.weight.fill_(float(step > 0))
            average.end_step(1)
            average.end_epoch(1)
    resumed = WeightAverage(config, model)
    resumed.load_state_dict(average.state_dict())

    assert float(average.state["weight"]) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(resumed.state["weight"], average.state["weight"])
    with average.apply():
        assert model.weight.dtype == dtype
        assert float(model.weight.detach()) == pytest.approx(expected, rel=1e-2)
