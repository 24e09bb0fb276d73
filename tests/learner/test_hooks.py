"""Hooks act at fixed points of a run, and a run with hooks resumes exactly."""

import logging

import pytest
import torch
from long_tests import covering_cases
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from stages.contracts.errors import BuilderError, PluginError
from stages.learner import FrozenNorms, Hook, LearnerBuilder, ScheduleFree, Unfreeze
from stages.learner.from_params import build_hook
from stages.learner.hooks import EVENTS, Hooks
from stages.models import ClassificationStep
from stages.optim import Adam, GroupedOptimizer
from stages.params.fit_params import FitConfig

TRAIN_BATCHES, VALID_BATCHES = 4, 2
STEPS = {
    "within the training": 2,
    "at the end of the training": TRAIN_BATCHES,
    "within the validation": TRAIN_BATCHES + 1,
    "at the end of an epoch": TRAIN_BATCHES + VALID_BATCHES,
    "within the training of epoch 2": TRAIN_BATCHES + VALID_BATCHES + 3,
}


class Net(ClassificationStep, nn.Sequential):
    pass


def build_net():
    torch.manual_seed(3)
    return Net(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


class Recorder(Hook):
    """Records the events with their epochs and steps."""

    def __init__(self):
        self.events = []


for event in EVENTS:
    setattr(
        Recorder,
        event,
        lambda self, context, event=event: self.events.append((event, context.epoch, context.step)),
    )


class ShrinkWeights:
    """Scales the weights by a factor that depends on the number of its calls; no subclass of `Hook`."""

    def __init__(self, rate=0.01):
        self.rate, self.calls, self.drawn = rate, 0, torch.zeros(2)

    def after_step(self, context):
        self.calls += 1
        self.drawn = torch.rand(2)
        with torch.no_grad():
            for parameter in context.model.parameters():
                parameter.mul_(1 - self.rate / self.calls * self.drawn[0])

    def before_validation(self, context):
        if context.step == 0:
            self.calls += 1

    def state_dict(self):
        return {"calls": self.calls, "drawn": self.drawn}

    def load_state_dict(self, state_dict):
        self.calls, self.drawn = state_dict["calls"], state_dict["drawn"]


class ScheduleFreeSgd(torch.optim.Optimizer):
    """Defazio et al., "The Road Less Scheduled", 2024, with the methods of the package ``schedulefree``."""

    def __init__(self, parameters, lr=0.1, beta=0.9):
        super().__init__(parameters, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})

    def _move(self, weight, *, train_mode):
        for group in self.param_groups:
            if group["train_mode"] is not train_mode:
                for parameter in group["params"]:
                    if "z" in self.state[parameter]:
                        parameter.data.lerp_(self.state[parameter]["z"], weight(group["beta"]))
                group["train_mode"] = train_mode

    def train(self):
        self._move(lambda beta: 1 - beta, train_mode=True)

    def eval(self):
        self._move(lambda beta: 1 - 1 / beta, train_mode=False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                z = self.state[parameter].setdefault("z", parameter.clone())
                parameter.lerp_(z, 1 - 1 / group["beta"])  # the average x
                z.sub_(parameter.grad, alpha=group["lr"])
                parameter.lerp_(z, 1 / group["k"]).lerp_(z, 1 - group["beta"])


def run(start, tiny, directory, hooks, *, stop_after=None, optimizer=lambda model: Adam()):
    builder = start(directory).checkpoint("auto").hooks(*hooks)
    if stop_after:
        builder.renderer(StopAfter(builder.interrupter(), stop_after))
    model = build_net()
    learner = builder.build(model, optimizer(model), 0.05)
    learner.fit(*tiny[1]())
    return learner


def test_hooks_are_called_in_the_order_of_a_run(start, tiny, tmp_path):
    recorder = Recorder()

    run(start, tiny, tmp_path, [recorder])

    assert recorder.events[0] == ("before_fit", 1, 0)
    assert len(recorder.events) == 1 + 3 * (TRAIN_BATCHES + 4)
    assert recorder.events[-8:] == [
        ("before_epoch", 3, 0),
        *(("after_step", 3, step) for step in range(1, TRAIN_BATCHES + 1)),
        ("before_validation", 3, 0),
        ("after_validation", 3, 0),
        ("after_epoch", 3, 0),
    ]


def test_epoch_without_validation_has_no_events_of_it(start, tiny, tmp_path):
    recorder = Recorder()
    builder = start(tmp_path, epochs=2).validate_every(2).hooks(recorder)

    builder.build(build_net(), Adam(), 0.05).fit(*tiny[1]())

    assert [epoch for event, epoch, _ in recorder.events if "validation" in event] == [2, 2]


@pytest.mark.parametrize(
    ("stop_after", "expected"),
    [
        (2, [("before_fit", 1, 2), ("before_epoch", 1, 2), ("after_step", 1, 3)]),
        (TRAIN_BATCHES + 1, [("before_fit", 1, 1), ("before_validation", 1, 1), ("after_validation", 1, 0)]),
        (TRAIN_BATCHES + VALID_BATCHES, [("before_fit", 2, 0), ("before_epoch", 2, 0)]),
    ],
)
def test_hooks_of_a_resumed_run_receive_the_position(stop_after, expected, start, tiny, tmp_path):
    run(start, tiny, tmp_path, [], stop_after=stop_after)
    recorder = Recorder()

    run(start, tiny, tmp_path, [recorder])

    assert recorder.events[: len(expected)] == expected


@pytest.mark.parametrize(
    ("case", "stop_after"), covering_cases(["state", "built in", "schedule-free"], STEPS, strength=1)
)
def test_resumed_run_with_hooks_equals_uninterrupted_run(case, stop_after, start, tiny, tmp_path):
    hooks = {
        "state": lambda: [ShrinkWeights()],
        "built in": lambda: [Unfreeze(r"^[01]\.", epoch=2), FrozenNorms()],
        "schedule-free": lambda: [ScheduleFree()],
    }
    optimizer = ScheduleFreeSgd if case == "schedule-free" else torch.optim.Adam

    assert_resumes_exactly(hooks[case], optimizer, stop_after, start, tiny, tmp_path)


def assert_resumes_exactly(build_hooks, optimizer, stop_after, start, tiny, tmp_path):
    """Check that a run that is stopped twice writes the files of an uninterrupted one."""

    def fit(directory, stop_after=None):
        def build(model):
            return optimizer(model.parameters())

        run(start, tiny, directory, build_hooks(), stop_after=stop_after, optimizer=build)

    fit(tmp_path / "a")
    fit(tmp_path / "b", stop_after)
    fit(tmp_path / "b", 1)
    fit(tmp_path / "b")

    assert read_run_files(tmp_path / "b") == read_run_files(tmp_path / "a")


@pytest.mark.parametrize(
    ("kind", "stop_after"),
    covering_cases(["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"], STEPS, strength=1),
)
def test_resumed_run_of_the_package_schedulefree_equals_uninterrupted_run(
    kind, stop_after, start, tiny, tmp_path
):
    optimizer = getattr(pytest.importorskip("schedulefree"), kind)

    assert_resumes_exactly(lambda: [ScheduleFree()], optimizer, stop_after, start, tiny, tmp_path)


def test_modes_that_before_validation_sets_are_those_of_the_validation(start, tiny, tmp_path):
    seen = []

    class Recording(Net):
        def valid_step(self, batch):
            seen.append([module.training for module in self])
            return super().valid_step(batch)

    class DropInValidation(Hook):
        def before_validation(self, context):
            context.model[1].train()

    builder = start(tmp_path, 2).hooks(DropInValidation())
    builder.build(Recording(*tiny[0]()), Adam(), 0.05).fit(*tiny[1]())

    assert seen == [[False, True, False, False]] * 2 * VALID_BATCHES


def test_hook_may_train_the_model_of_the_run_with_a_learner_of_its_own(start, tiny, tmp_path):
    class WarmUp(Hook):
        def before_epoch(self, context):
            learner = start(tmp_path / f"inner {context.epoch}", 1).build(context.model, Adam(), 0.05)
            learner.fit(*tiny[1]())
            context.model.train()

    hooked = start(tmp_path / "outer", 2).hooks(WarmUp()).build(tiny[0](), Adam(), 0.05)

    hooked.fit(*tiny[1]())

    assert hooked.epoch == 2


def test_before_fit_is_called_again_if_it_raised(start, tiny, tmp_path):
    class Interrupted(Hook):
        calls = 0

        def before_fit(self, context):
            self.calls += 1
            if self.calls == 1:
                raise KeyboardInterrupt

    hook = Interrupted()
    learner = start(tmp_path).hooks(hook).build(tiny[0](), Adam(), 0.05)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(*tiny[1]())
    learner.fit(*tiny[1]())

    assert hook.calls == 2


def replace_layer(model, optimizer):
    model[3] = nn.Linear(8, 3)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def add_layer(model, optimizer):
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": list(model[4].parameters())})


@pytest.mark.parametrize("event", ["before_epoch", "after_validation"])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (replace_layer, r"3\.weight, 3\.bias"),
        (add_layer, r"4\.weight, 4\.bias"),
        (lambda model, _: l1_unstructured(model[0], "weight", 0.5), r"0\.weight, 0\.weight_orig"),
    ],
)
def test_hook_that_changes_which_parameters_a_model_has_is_refused(
    event, change, name, start, tiny, tmp_path
):
    def act(hook, context):
        if context.epoch == 2:
            change(context.model, context.optimizer)

    hook = type("Change", (Hook,), {event: act})()
    learner = start(tmp_path).hooks(hook).build(tiny[0](), Adam(), 0.05)

    with pytest.raises(BuilderError, match=f"of Net changed in the run, .*{name}"):
        learner.fit(*tiny[1]())

    assert learner.epoch == 1


def test_hook_without_after_step_adds_no_call_to_a_step():
    model = build_net()
    hooks = Hooks([FrozenNorms(), Hook()], model, torch.optim.SGD(model.parameters()))

    assert hooks.follow(print) is print


def test_parameters_are_trained_from_the_epoch_of_unfreeze(start, tiny, tmp_path):
    class Weights(Hook):
        values = ()

        def after_epoch(self, context):
            self.values = (*self.values, context.model[0].weight.detach().clone())

    weights = Weights()

    learner = run(start, tiny, tmp_path, [Unfreeze(r"^0\.", epoch=3), weights])

    initial = build_net()[0].weight
    assert [torch.equal(value, initial) for value in weights.values] == [True, True, False]
    assert learner.model[0].weight.requires_grad


def test_frozen_norm_keeps_its_statistics_until_it_is_trained(start, tiny, tmp_path):
    learner = run(start, tiny, tmp_path / "frozen", [Unfreeze(r"^1\.", epoch=9), FrozenNorms()])
    trained = run(start, tiny, tmp_path / "trained", [Unfreeze(r"^1\.", epoch=3), FrozenNorms()])

    assert learner.model[1].num_batches_tracked == 0
    assert torch.equal(learner.model[1].running_mean, torch.zeros(8))
    assert trained.model[1].num_batches_tracked == TRAIN_BATCHES


def test_schedule_free_run_ends_with_the_averaged_weights(start, tiny, tmp_path):
    learner = run(
        start,
        tiny,
        tmp_path,
        [ScheduleFree()],
        optimizer=lambda model: ScheduleFreeSgd(model.parameters()),
    )

    optimizer, weight = learner.components.state.model.optimizer, learner.model[0].weight
    average = weight.detach().clone()
    assert not optimizer.param_groups[0]["train_mode"]
    optimizer.train()
    assert not torch.equal(weight, average)


class Misspelled(Hook):
    def before_epochs(self, context):
        pass


class WithoutContext:
    def after_step(self):
        pass


class Unloadable(Hook):
    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (Misspelled(), "hook Misspelled has the attribute 'before_epochs', which no run calls. Did you mean"),
        (WithoutContext(), "hook WithoutContext: after_step must take one argument, the context: too many"),
        (Unloadable(), "hook Unloadable defines only one of state_dict and load_state_dict"),
        (object(), r"the hook must be an object such as FrozenNorms\(\); found the type object"),
        (FrozenNorms, "found the class FrozenNorms"),
    ],
)
def test_object_that_is_no_hook_is_refused(hook, message, tmp_path):
    with pytest.raises(BuilderError, match=message):
        LearnerBuilder(tmp_path).hooks(hook)


@pytest.mark.parametrize(
    ("hooks", "optimizer", "message"),
    [
        ([Unfreeze("^9", epoch=2)], Adam(), "fit.hooks: match: the name of no parameter matches '\\^9'"),
        (
            [Unfreeze(r"^0\.", epoch=2)],
            GroupedOptimizer(Adam(), freeze=(r"^0\.weight",)),
            "fit.hooks: the optimizer lacks 1 of the 2 parameters that",
        ),
        ([ScheduleFree()], Adam(), "the hook schedule_free calls train.. and eval.. of the optimizer, which"),
    ],
)
def test_hook_that_does_not_fit_the_run_is_refused_before_training(
    hooks, optimizer, message, start, tiny, tmp_path
):
    with pytest.raises(BuilderError, match=message):
        run(start, tiny, tmp_path, hooks, optimizer=lambda _: optimizer)

    assert not (tmp_path / "train").exists()


def test_state_that_the_checkpoint_lacks_is_reported(start, tiny, tmp_path, caplog):
    run(start, tiny, tmp_path, [], stop_after=TRAIN_BATCHES + VALID_BATCHES)

    with caplog.at_level(logging.WARNING):
        run(start, tiny, tmp_path, [ShrinkWeights()])

    assert "the checkpoint has no state of the hook 0 ShrinkWeights" in caplog.text


def test_hooks_are_in_the_key_of_a_run_if_there_are_any():
    hooks = [{"kind": "unfreeze", "match": "^0", "epoch": 3}]

    assert "hooks" not in FitConfig().model_dump(mode="json")
    assert FitConfig.model_validate({"hooks": hooks}).key_params()["hooks"] == hooks


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ({"kind": "unfreeze"}, "hook 'unfreeze' cannot be built: the argument 'match' is missing"),
        (
            {"kind": "unfreeze", "match": "a", "epoch": 1},
            "Unfreeze: epoch must be an integer from 2; found 1",
        ),
        ({"kind": "pathlib:Path"}, "the hook must be an object such as"),
    ],
)
def test_wrong_hook_in_params_is_one_message(use, message):
    (hook,) = FitConfig.model_validate({"hooks": [use]}).hooks

    with pytest.raises((PluginError, BuilderError), match=message):
        build_hook(hook)
