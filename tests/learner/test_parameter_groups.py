"""Groups of parameters and frozen parameters: their options, their rates, their resume and their mistakes."""

import pytest
import torch
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError, ParamsError
from stages.learner import Hook, LearnerSpec
from stages.models import ClassificationStep
from stages.optim import (
    AdaGrad,
    Adam,
    AdamW,
    Cosine,
    GroupedOptimizer,
    Lbfgs,
    Linear,
    Muon,
    OptimizerUse,
    ParameterGroup,
    RmsProp,
    Scheduler,
    Sgd,
    Step,
    TorchScheduler,
    build_model_optimizer,
    check_groups,
    load_burn_schedule,
    schedule_groups,
)
from stages.optim.burn_optimizers import MuonOfBurn
from stages.params.build_learner_params import BuildLearnerConfig
from stages.records import BurnpackRecorder, load_burn_optimizer, optimizer_record, read_item, record_of
from stages.renderers import NoRenderer

OPTIMIZERS = {
    "adam": Adam(weight_decay=0.1),
    "adamw": AdamW(weight_decay=0.1),
    "sgd": Sgd(momentum=0.9, weight_decay=0.1),
    "rmsprop": RmsProp(weight_decay=0.1),
    "adagrad": AdaGrad(weight_decay=0.1),
    "muon": Muon(weight_decay=0.1),
    "nadam": OptimizerUse(kind="nadam", weight_decay=0.1),
}
GROUPS = (
    ParameterGroup(match="biases_and_norms", weight_decay=0.0),
    ParameterGroup(match=[r"^3\.", "head"], learning_rate=0.02),
)


class Net(ClassificationStep, nn.Sequential):
    """Layers 0 to 4: a linear layer, a norm, ReLU, two linear layers."""


UNITS = {"batch": range(8), "update": (0, 0, 0, 1, 2, 2, 2, 3), "epoch": (0, 0, 0, 0, 1, 1, 1, 1)}
"""The iteration of a schedule at each batch, by its unit."""


def net():
    torch.manual_seed(3)
    return Net(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))


def grouped(kind, freeze=("^0.weight",)):
    group = GROUPS[1].model_copy(update={"match": (r"^3\.",)})
    return GroupedOptimizer(OPTIMIZERS[kind], (GROUPS[0], group), freeze)


def states_by_path(path):
    """Return the state of each parameter in the burnpack file at *path*."""
    return {state.path: state.value.value for state in read_item(path).values()}


def run(start, tiny, optimizer, directory, stop_after=None, epochs=3):
    """Train, or resume; *stop_after* is the number of steps after which the run is interrupted."""
    builder = start(directory, epochs).checkpoint("auto").summary()
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = builder.build(net(), optimizer, Scheduler(0.01, Cosine(num_iters=20)))
    learner.fit(*tiny[1]())
    return learner


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_resumed_run_with_groups_equals_uninterrupted_run(start, tiny, kind, tmp_path):
    run(start, tiny, grouped(kind), tmp_path / "uninterrupted", epochs=2)

    run(start, tiny, grouped(kind), tmp_path / "resumed", stop_after=8, epochs=2)
    learner = run(start, tiny, grouped(kind), tmp_path / "resumed", epochs=2)

    assert learner.resumed == "in epoch 2, after batch 2 of training"
    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")


def joined():
    own = (
        ParameterGroup(match=r"^3\.weight", optimizer=Muon(learning_rate=0.02)),
        ParameterGroup(match=r"^1\.", optimizer=Sgd(learning_rate=0.1, momentum=0.9)),
        ParameterGroup(match="bias", weight_decay=0.0),
    )
    return GroupedOptimizer(AdamW(learning_rate=0.01, weight_decay=0.1), own)


def test_groups_with_optimizers_of_their_own_train_as_those_of_torch(start, tiny, tmp_path):
    learner = run(start, tiny, joined(), tmp_path)
    model = net()
    rest = [p for name, p in model.named_parameters() if name in ("0.weight", "4.weight")]
    biases = [p for name, p in model.named_parameters() if name in ("0.bias", "3.bias", "4.bias")]
    decays = [{"params": rest}, {"params": biases, "weight_decay": 0.0}]
    theirs = [
        torch.optim.AdamW(decays, lr=0.01, eps=1e-5, weight_decay=0.1, fused=True),
        MuonOfBurn([model[3].weight], lr=0.02, weight_decay=0.0),
        torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=0.9, dampening=0.1, fused=True),
    ]

    theirs[1].transposed = [model[3].weight]
    schedule, train = Scheduler(0.01, Cosine(num_iters=20)), tiny[1]()[0]
    for epoch in range(1, 4):
        train.set_epoch(epoch)
        for batch in train:
            rate = schedule.step()
            for parameter, gradient in zip(
                model.parameters(), model.train_step(batch).gradients, strict=True
            ):
                parameter.grad = gradient
            for optimizer, share in zip(theirs, (1, 2, 10), strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = rate * share
                optimizer.step()

    torch.testing.assert_close(learner.model.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6)


def test_run_with_several_optimizers_resumes_and_writes_the_fields_of_each(start, tiny, tmp_path):
    run(start, tiny, joined(), tmp_path / "uninterrupted")

    run(start, tiny, joined(), tmp_path / "resumed", stop_after=8)
    learner = run(start, tiny, joined(), tmp_path / "resumed")

    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")
    optimizer, model = learner.components.state.model.optimizer, learner.model
    path = BurnpackRecorder().record(optimizer_record(optimizer, model), tmp_path / "optim")
    fresh = build_model_optimizer(joined(), net())
    assert load_burn_optimizer(fresh, model, read_item(path), record_of(model)) == []
    kinds = {name: {*state["momentum"]} for name, state in states_by_path(path).items()}
    assert kinds["3.weight"] == kinds["1.gamma"] == {"velocity"}
    assert kinds["0.weight"] == {"time", "moment_1", "moment_2"}


SCHEDULED = GroupedOptimizer(
    AdamW(learning_rate=0.01),
    (
        ParameterGroup(match=r"^3\.", learning_rate=0.02, schedule=Linear(final=0.001, num_iters=10)),
        ParameterGroup(match="bias", learning_rate=0.005),
    ),
)


def test_group_with_a_schedule_has_its_rates_and_resumes(start, tiny, tmp_path):
    whole = run(start, tiny, SCHEDULED, tmp_path / "uninterrupted")
    run(start, tiny, SCHEDULED, tmp_path / "resumed", stop_after=8)
    resumed = run(start, tiny, SCHEDULED, tmp_path / "resumed")

    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")
    own, base = Scheduler(0.02, SCHEDULED.groups[0].schedule), Scheduler(0.01, Cosine(num_iters=20))
    rates = [(base.step(), own.step()) for _ in range(12)][-1]
    for learner in (whole, resumed):
        state = learner.components.state.model
        assert [group["lr"] for group in state.optimizer.param_groups] == [rates[0], rates[1], rates[0] / 2]
        path = BurnpackRecorder().record(state.scheduler.burn_state(), tmp_path / "scheduler")
        assert read_item(path) == [{"current_iter": 11}, {"remaining_iters": 0}]

    fresh = resumed.components.state.model
    again = schedule_groups(SCHEDULED, fresh.model, fresh.optimizer, Scheduler(0.01, Cosine(num_iters=20)))
    load_burn_schedule(again, read_item(path))
    assert (again.iteration, again.own[0].iteration) == (12, 11)


class Rates(Hook):
    """The learning rates of both groups at each batch."""

    def __init__(self):
        self.rates = []

    def after_step(self, context):
        self.rates.append(tuple(group["lr"] for group in context.optimizer.param_groups))


@pytest.mark.parametrize("base", UNITS)
@pytest.mark.parametrize("own", UNITS)
def test_schedule_of_a_group_counts_its_own_unit_in_accumulation_windows(start, tiny, base, own, tmp_path):
    """Four batches an epoch with windows of three: batches 1, 4, 5 and 8 begin a window."""
    group = ParameterGroup(match="^3", learning_rate=0.2, schedule=Step(step_size=1, gamma=0.5, per=own))
    hook = Rates()

    builder = start(tmp_path, epochs=2).grads_accumulation(3).hooks(hook)
    scheduler = Scheduler(0.1, Step(step_size=1, gamma=0.5, per=base))
    builder.build(net(), GroupedOptimizer(Sgd(learning_rate=0.1), (group,)), scheduler).fit(*tiny[1]())

    steps = zip(UNITS[base], UNITS[own], strict=True)
    assert hook.rates == [(0.1 * 0.5**of_base, 0.2 * 0.5**of_own) for of_base, of_own in steps]


def test_group_whose_schedule_counts_updates_resumes_within_a_window(start, tiny, tmp_path):
    group = ParameterGroup(match="^3", schedule=Linear(final=0.001, num_iters="100 %", per="update"))

    def run_windows(directory, stop_after):
        builder = start(directory, epochs=2).checkpoint("auto").grads_accumulation(3, leftover="carry")
        builder.renderer(StopAfter(builder.interrupter(), stop_after))
        optimizer = GroupedOptimizer(AdamW(learning_rate=0.01), (group,))
        builder.build(net(), optimizer, Scheduler(0.01, Cosine(num_iters=20))).fit(*tiny[1]())

    run_windows(tmp_path / "uninterrupted", 0)
    for stop_after in (2, 5, 0):
        run_windows(tmp_path / "resumed", stop_after)

    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")


def test_group_with_a_schedule_needs_one_of_this_project(tmp_path):
    model = net()
    optimizer = build_model_optimizer(SCHEDULED, model)

    with pytest.raises(BuilderError, match=r"that of the other parameters is a TorchScheduler\. Use sched"):
        schedule_groups(
            SCHEDULED, model, optimizer, TorchScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        )


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"optimizer": Sgd(), "weight_decay": 0.1}, "Move or remove weight_decay"),
        ({"optimizer": Sgd(clipping={"kind": "norm", "max_norm": 1})}, "Move or remove clipping"),
        ({"optimizer": Lbfgs()}, "lbfgs cannot be combined with another optimizer"),
    ],
)
def test_group_with_an_optimizer_and_other_options_is_refused(group, message):
    with pytest.raises(ParamsError, match=message):
        check_groups(Adam(), [ParameterGroup(match="x", **group)])


@pytest.mark.parametrize("fast_path", ["auto", "off"])
def test_groups_train_as_those_of_torch(start, tiny, tmp_path, fast_path):
    """The second group has twice the rate of the first, also after the schedule has changed it."""
    ours, model = net(), net()
    config = GroupedOptimizer(AdamW(learning_rate=0.01, weight_decay=0.1), grouped("adam").groups)
    plain = [p for name, p in model.named_parameters() if name in ("0.weight", "4.weight")]
    groups = [
        {"params": plain},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        {"params": [model[3].weight], "lr": 0.02},
    ]
    of_torch = torch.optim.AdamW(groups, lr=0.01, eps=1e-5, weight_decay=0.1, fused=True)

    for number, (each, optimizer) in enumerate([(ours, config), (model, of_torch)]):
        builder = start(tmp_path / str(number)).fast_path(fast_path)
        builder.build(each, optimizer, Scheduler(0.01, Cosine(num_iters=20))).fit(*tiny[1]())

    assert all(map(torch.equal, ours.parameters(), model.parameters()))


def test_first_match_wins_and_the_others_keep_the_options_of_the_optimizer():
    optimizer = build_model_optimizer(grouped("adamw", freeze=()), model := net())

    shapes = [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    assert shapes == [[(8, 4), (3, 8)], [(8,), (8,), (8,), (8,), (3,)], [(8, 8)]]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.1]
    assert [group["lr"] for group in optimizer.param_groups] == [1e-4, 1e-4, 0.02]
    assert all(each.requires_grad for each in model.parameters())


def test_norms_of_any_shape_are_norms():
    class RootNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(2, 3))

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm((2, 3)), RootNorm())
    group = ParameterGroup(match="biases_and_norms", weight_decay=0.0)

    optimizer = build_model_optimizer(GroupedOptimizer(Adam(), (group,)), model)

    assert [[tuple(p.shape) for p in each["params"]] for each in optimizer.param_groups] == [
        [(3, 3)],
        [(3,), (2, 3), (2, 3), (2, 3)],
    ]


def test_muon_applies_the_options_of_a_group_to_both_of_its_optimizers():
    optimizer = build_model_optimizer(grouped("muon", freeze=()), net())

    kinds = ["muon" if "ns_steps" in group else "adamw" for group in optimizer.param_groups]
    assert kinds == ["muon", "muon", "adamw", "adamw"]
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 0.02, 1e-4, 1e-4]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 1e-4, 0.0]


def test_group_may_set_an_option_of_muon_back_to_its_default():
    default = Muon().ns_coefficients
    config = Muon(ns_coefficients=(2.0, -1.5, 0.5))
    groups = (ParameterGroup(match="^3", ns_coefficients=default),)

    optimizer = build_model_optimizer(GroupedOptimizer(config, groups), net())

    muon = [group["ns_coefficients"] for group in optimizer.param_groups if "ns_steps" in group]
    assert muon == [config.ns_coefficients, default]


@pytest.mark.parametrize("optimizer", [Muon(), Adam()])
def test_optimizer_of_a_model_with_a_spectral_norm_leaves_its_state_unchanged(optimizer):
    """Each access to the weight of such a layer is a step of its power iteration."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Linear(3, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    build_model_optimizer(optimizer, model)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_groups_may_have_all_parameters(start, tiny, tmp_path):
    every = GroupedOptimizer(Adam(), (ParameterGroup(match=".", learning_rate=2e-4),))
    model, plain = net(), net()

    start(tmp_path / "groups").build(model, every, 0.01).fit(*tiny[1]())
    start(tmp_path / "plain").build(plain, Adam(), 0.02).fit(*tiny[1]())

    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_frozen_parameters_keep_their_values_and_are_in_the_summary(start, tiny, tmp_path, capsys):
    learner = run(start, tiny, grouped("adamw", freeze=(r"^0\.", "1.bias")), tmp_path)

    frozen = [name for name, each in learner.model.named_parameters() if not each.requires_grad]
    assert frozen == ["0.weight", "0.bias", "1.bias"]
    assert all(torch.equal(dict(net().named_parameters())[n], learner.model.get_parameter(n)) for n in frozen)
    lines = capsys.readouterr().out.splitlines()
    assert "Frozen parameters: 48 in 0.weight, 0.bias, 1.bias" in lines
    assert "  group 2: 19 parameters, weight_decay 0.0" in lines
    assert "  group 3: 64 parameters, learning rate times 200" in lines


MISTAKES = {
    "pattern without a match": (
        ("head\\.weigth",),
        (),
        r"freeze: .*no parameter matches 'head.*'. Did.*'head.weight'",
    ),
    "group without a match": (
        (),
        ("haed",),
        r"parameter_groups.0.match: .* 'haed'. Did you mean 'head'.* Names: body",
    ),
    "group without parameters": (("bias",), ("bias",), "are frozen or in earlier groups"),
    "nothing to train": (("",), (), "match all 4 parameters, so none is left"),
}


@pytest.mark.parametrize(("freeze", "match", "message"), MISTAKES.values(), ids=MISTAKES)
def test_pattern_without_effect_is_refused(freeze, match, message):
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    groups = (ParameterGroup(match=match, weight_decay=0.0),) if match else ()

    with pytest.raises(BuilderError, match=message):
        build_model_optimizer(GroupedOptimizer(Adam(), groups, freeze), model)


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (
            Adam(),
            {"weight_decy": 0},
            "0: adam has no option 'weight_decy' for a group. Did you mean 'weight_d",
        ),
        (Sgd(), {"learning_rate": -1}, "0: learning_rate: must be a finite number above 0; found -1"),
        (Muon(), {"beta_1": 1}, "0: beta_1: must be a number of at least 0 and below 1; found 1"),
        (Lbfgs(), {"learning_rate": 1}, "lbfgs has no groups of parameters"),
        (OptimizerUse(kind="nadam"), {"lr": 1}, "lr: unknown key. Set learning_rate instead"),
    ],
)
def test_wrong_option_of_a_group_is_refused_with_the_known_ones(optimizer, options, message):
    with pytest.raises(ParamsError, match=message):
        check_groups(optimizer, [ParameterGroup(match="bias", **options)])


def test_params_pass_groups_and_frozen_parameters_to_the_learner(tmp_path):
    params = BuildLearnerConfig.model_validate(
        {
            "model": {"kind": "mlp"},
            "parameter_groups": [{"match": "biases_and_norms", "weight_decay": 0}],
            "freeze": ["^layers.0"],
        }
    )
    spec = LearnerSpec(
        input_shape=(4,), num_classes=3, num_outputs=3, **{name: getattr(params, name) for name in FIELDS}
    )
    spec.write(tmp_path)

    model, optimizer, _ = LearnerSpec.read(tmp_path).build(1)

    built = build_model_optimizer(optimizer, model)
    assert [len(group["params"]) for group in built.param_groups] == [1, 1]
    assert not model.layers[0].weight.requires_grad


FIELDS = ("model", "optimizer", "schedule", "parameter_groups", "freeze")
