"""Runs with the schedulers of torch, by name or import path: their rates, their resume and their mistakes."""

import pytest
import torch
from run_files import read_run_files
from stop_after import StopAfter
from torch.optim import lr_scheduler

from stages.contracts.errors import BuilderError, PluginError
from stages.metrics import LearningRateMetric
from stages.optim import Cosine, Scheduler, ScheduleUse, Sgd, check_schedule_class
from stages.optim.schedules import BUILT_IN, OUR_KINDS
from stages.optim.torch_scheduler import build_torch_scheduler
from stages.renderers import NoRenderer

TORCH = "torch.optim.lr_scheduler:"
STEP, EPOCH = {"per": "batch"}, {"per": "epoch"}
FUNCTION = f"{__name__}:ninety_percent"
SCHEDULES = {
    "chained": STEP
    | {
        "schedulers": [
            {"kind": f"{TORCH}ConstantLR", "total_iters": 3},
            {"kind": "multi_step", "milestones": [5]},
        ]
    },
    "cosine_annealing": STEP | {"T_max": 9, "eta_min": 0.01},
    "cosine_annealing_warm_restarts": STEP | {"T_0": 4},
    "cyclic": STEP | {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4},
    "lambda": EPOCH | {"lr_lambda": FUNCTION},
    "multi_step": STEP | {"milestones": [2, 7], "gamma": 0.5},
    "multiplicative": STEP | {"lr_lambda": FUNCTION},
    "one_cycle": STEP | {"max_lr": 0.3, "total_steps": 30},
    "polynomial": STEP | {"total_iters": 12},
    "reduce_on_plateau": {"patience": 0, "threshold": 10.0},
    f"{TORCH}ConstantLR": STEP | {"factor": 0.5},
    f"{TORCH}ExponentialLR": EPOCH | {"gamma": 0.5},
    f"{TORCH}LinearLR": STEP | {"total_iters": 12},
    f"{TORCH}ReduceLROnPlateau": {"mode": "max", "monitor": "Accuracy", "patience": 0},
    f"{TORCH}SequentialLR": STEP
    | {
        "milestones": [4],
        "schedulers": [{"kind": f"{TORCH}LinearLR"}, {"kind": f"{TORCH}ExponentialLR", "gamma": 0.9}],
    },
    f"{TORCH}StepLR": EPOCH | {"step_size": 1},
}


def ninety_percent(step):
    return 0.9 + 0.01 * (step % 3)


def use(kind):
    return ScheduleUse.model_validate({"kind": kind, **SCHEDULES[kind]})


def run(start, tiny, schedule, directory, stop_after=None):
    """Train, or resume; *stop_after* is the number of steps after which the run is interrupted."""
    net, loaders = tiny
    builder = start(directory, epochs=2).checkpoint("auto").metric_train_numeric(LearningRateMetric())
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = builder.build(net(), Sgd(learning_rate=0.1, momentum=0.9, dampening=0.0), schedule)
    learner.fit(*loaders())
    return learner


@pytest.mark.parametrize("kind", SCHEDULES)
def test_resumed_run_equals_uninterrupted_run_for_each_scheduler_of_torch(start, tiny, kind, tmp_path):
    """The run of 2 epochs of 6 steps is interrupted within the second epoch."""
    run(start, tiny, use(kind), tmp_path / "uninterrupted")

    run(start, tiny, use(kind), tmp_path / "resumed", stop_after=8)
    learner = run(start, tiny, use(kind), tmp_path / "resumed")

    assert learner.resumed == "in epoch 2, after batch 2 of training"
    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")


def test_each_scheduler_of_torch_is_in_the_table():
    public = {name for name in lr_scheduler.__all__ if name != "LRScheduler"}

    paths = {BUILT_IN.get(kind, kind).removeprefix(TORCH) for kind in SCHEDULES}
    assert paths == public
    assert {*BUILT_IN} == {*OUR_KINDS, *(kind for kind in SCHEDULES if ":" not in kind)}


def test_rates_are_those_of_a_plain_torch_loop(start, tiny, tmp_path):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    reference, expected = lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=30), []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()

    run(start, tiny, use("one_cycle"), tmp_path)

    (log,) = (tmp_path / "train" / "epoch-1").glob("Learning*")
    rates = [float(line.split(",")[0]) for line in log.read_text().splitlines()]
    assert rates == pytest.approx(expected[: len(rates)])


MISTAKES = {
    "unknown argument": (
        {"kind": "one_cycle", "per": "batch", "max_rl": 0.1},
        "schedule 'one_cycle' cannot be built: unknown argument 'max_rl'. Did you mean 'max_lr'",
    ),
    "missing argument": ({"kind": "multi_step", "per": "batch"}, "the argument 'milestones' is missing"),
    "invalid value": (
        {"kind": "one_cycle", "per": "batch", "max_lr": 1},
        "You must define either total_steps",
    ),
    "part of Burn": (
        {"kind": "chained", "per": "batch", "schedulers": [{"kind": "linear"}]},
        "cannot be 'linear', a schedule of Burn. Write the import path",
    ),
    "missing function": (
        {"kind": "lambda", "per": "batch", "lr_lambda": "lambda n: 0.9"},
        "'lambda n: 0.9' is not an import path",
    ),
}


@pytest.mark.parametrize(("schedule", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_reported_without_training(schedule, message):
    with pytest.raises(PluginError, match=message):
        check_schedule_class(ScheduleUse.model_validate(schedule))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"kind": "one_cycle"}, "set per to batch or epoch, after which one_cycle makes a step"),
        ({"kind": "reduce_on_plateau", "per": "batch"}, "reduce_on_plateau steps after each epoch"),
    ],
)
def test_unit_of_a_step_is_explicit(schedule, message):
    with pytest.raises(ValueError, match=message):
        ScheduleUse.model_validate(schedule)


def test_list_with_a_value_for_each_group_is_accepted():
    check_schedule_class(ScheduleUse(kind="one_cycle", per="batch", max_lr=[0.1, 0.2, 0.3], total_steps=9))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("one_cycle", {"max_lr": 0.3, "total_steps": 9}),
        ("cyclic", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 3, "cycle_momentum": False}),
        ("torch.optim.swa_utils:SWALR", {"swa_lr": 0.3, "anneal_epochs": 4}),
    ],
)
def test_groups_keep_the_ratios_of_their_rates(kind, arguments):
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.05}], lr=0.1)
    scheduler = build_torch_scheduler(ScheduleUse(kind=kind, per="batch", **arguments), optimizer)

    for _ in range(8):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert second == pytest.approx(first / 2)
        optimizer.step()
        scheduler.step()


def test_only_a_plateau_monitors_a_metric():
    with pytest.raises(BuilderError, match="does not monitor a metric"):
        check_schedule_class(ScheduleUse(kind="polynomial", per="batch", monitor="Accuracy"))


def test_end_of_a_schedule_of_fixed_length_is_explained(start, tiny, tmp_path):
    ending = ScheduleUse(kind="one_cycle", per="batch", max_lr=0.3, total_steps=3)

    with pytest.raises(
        BuilderError, match=r"the OneCycleLR has total_steps 3, but the run makes \d+ steps, one"
    ):
        run(start, tiny, ending, tmp_path)

    assert not (tmp_path / "train").exists(), "the run has not begun"


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        (Scheduler(0.1), "Schedule: constant"),
        (Scheduler(0.1, Cosine(num_iters=9, per="epoch")), "Schedule: cosine, one step per epoch"),
        (use("one_cycle"), "Schedule: OneCycleLR, one step per batch"),
        (use("reduce_on_plateau"), "Schedule: ReduceLROnPlateau, one step per epoch, monitors valid Loss"),
        (None, "Schedule: the rates of the optimizer"),
    ],
)
def test_summary_names_the_unit_of_a_step(start, tiny, tmp_path, capsys, schedule, line):
    net, loaders = tiny
    start(tmp_path, epochs=1).summary().build(net(), Sgd(momentum=0.9), schedule).fit(*loaders())

    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("per", ["batch", "epoch"])
def test_schedule_of_a_class_steps_per_what_params_say(per):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    assert build_torch_scheduler(ScheduleUse(kind="polynomial", per=per), optimizer).per == per
