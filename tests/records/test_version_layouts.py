"""Translation of optimizers and schedules between the layouts of Burn 0.21 and 0.22, or its refusal."""

import pytest
import torch

from stages.contracts.errors import RecordError
from stages.optim import (
    Adam,
    Adan,
    Composed,
    Constant,
    Cosine,
    Exponential,
    Lbfgs,
    Linear,
    Lion,
    Muon,
    Noam,
    Scheduler,
    Sequential,
    Sgd,
    Step,
    Stepper,
    build_model_optimizer,
)
from stages.records import (
    BurnpackRecorder,
    NamedMpkFileRecorder,
    formats,
    optimizer_record,
    read_item,
    record_of,
)
from stages.records.tools.conversion import convert_record, translate_version


def convert(source, target):
    before, after = formats.find_format(source), formats.find_format(target)
    record = translate_version(formats.read(source, before), source, before, after)
    formats.write(convert_record(record, after), target, after)
    return target


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)


def write_optimizer(config, directory):
    """Write the records of a model and its optimizer in both layouts, and return the paths of the latter."""
    model = Net()
    optimizer = build_model_optimizer(config, model)
    stepper, gradients = Stepper([*model.parameters()], optimizer), [torch.ones(2, 3), torch.ones(2)]
    for _ in range(2):
        if isinstance(config, Lbfgs):
            stepper.step_with_closure(lambda: (torch.zeros(()), gradients), 0.1)
        else:
            stepper.step(gradients, 0.1)
    recorders = (NamedMpkFileRecorder(), BurnpackRecorder())
    for recorder in recorders:
        recorder.record(record_of(model), directory / "model-1")
    item = optimizer_record(optimizer, model)
    return [recorder.record(item, directory / "optim-1") for recorder in recorders]


@pytest.mark.parametrize(
    "config", [Adam(amsgrad=True), Adan(), Sgd(momentum=0.9), Lbfgs(max_iter=1)], ids=str
)
def test_optimizer_is_translated_both_ways(config, tmp_path):
    old, new = write_optimizer(config, tmp_path)

    to_new, to_old = convert(old, tmp_path / "optim-1a.bpk"), convert(new, tmp_path / "out.mpk")

    assert to_new.read_bytes() == new.read_bytes()
    assert same(read_item(to_old), read_item(old))


def same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        names = {
            name for name in {*first, *second} if first.get(name) is not None or second.get(name) is not None
        }
        return all(same(first[name], second[name]) for name in names)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


SCHEDULES = {
    "constant": Constant(),
    "linear": Linear(final=0.1, num_iters=9),
    "cosine": Cosine(num_iters=9),
    "exponential": Exponential(gamma=0.5),
    "noam": Noam(),
    "step": Step(step_size=2),
    "composed": Composed(schedulers=(Cosine(initial=1.0, num_iters=9), Noam())),
}


@pytest.mark.parametrize("rule", SCHEDULES.values(), ids=SCHEDULES)
def test_schedule_of_022_becomes_the_number_of_021(rule, tmp_path):
    state = Scheduler(0.5, rule).burn_state()
    new = BurnpackRecorder().record(state, tmp_path / "scheduler-1")
    old = NamedMpkFileRecorder().record(state, tmp_path / "scheduler-1")

    assert read_item(convert(new, tmp_path / "scheduler.mpk")) == read_item(old)


PARTS = (Cosine(initial=1.0, num_iters=9), Constant())
REFUSED = {
    "sequential": (
        Scheduler(0.5, Sequential(schedulers=PARTS, milestones=(3,))),
        "a schedule that Burn 0.21",
    ),
    "with a constant": (Scheduler(0.5, Composed(schedulers=PARTS[::-1])), "a schedule that Burn 0.21 lacks"),
    "with steps": (
        Scheduler(0.5, Composed(schedulers=(Step(step_size=2),))),
        "a schedule that Burn 0.21 lacks",
    ),
}


@pytest.mark.parametrize(("scheduler", "message"), REFUSED.values(), ids=REFUSED)
def test_schedule_that_021_lacks_is_refused(scheduler, message, tmp_path):
    path = BurnpackRecorder().record(scheduler.burn_state(), tmp_path / "scheduler-1")

    with pytest.raises(RecordError, match=message):
        convert(path, tmp_path / "out.mpk")
    assert not (tmp_path / "out.mpk").exists()


@pytest.mark.parametrize(
    ("config", "message"), [(Lion(), "optimizer that Burn 0.21 lacks"), (Muon(), "groups")], ids=str
)
def test_optimizer_that_021_lacks_is_refused(config, message, tmp_path):
    _, new = write_optimizer(config, tmp_path)

    with pytest.raises(RecordError, match=message):
        convert(new, tmp_path / "out.mpk")


def test_schedule_of_021_needs_its_kind(tmp_path):
    path = NamedMpkFileRecorder().record(Scheduler(0.5, SCHEDULES["linear"]).burn_state(), tmp_path / "a")

    with pytest.raises(RecordError, match="does not state the kind of its schedule"):
        convert(path, tmp_path / "out.bpk")


def test_optimizer_of_021_needs_the_record_of_its_model(tmp_path):
    old, _ = write_optimizer(Adam(), tmp_path)
    (tmp_path / "model-1.mpk").unlink()

    with pytest.raises(RecordError, match="Put the model's record of the same checkpoint beside it"):
        convert(old, tmp_path / "out.bpk")


def test_rnn_of_burnpack_needs_its_activations(tmp_path):
    path = BurnpackRecorder().record(record_of(torch.nn.LSTM(3, 2)), tmp_path / "model")

    with pytest.raises(RecordError, match="has an RNN, whose activation burnpack does not store"):
        convert(path, tmp_path / "out.mpk")
