"""State of optimizers, schedulers, modules and metrics of a user: restored exactly, or refused early."""

from collections import Counter, deque

import numpy as np
import pytest
import torch
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError, RecordError
from stages.learner import Hook, LearnerBuilder
from stages.models import ClassificationStep
from stages.optim import Ema, Scheduler, Sgd
from stages.records import BurnpackRecorder, NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 2


class Net(ClassificationStep, nn.Linear):
    def __init__(self, extra=None):
        torch.manual_seed(0)
        super().__init__(3, 2)
        if extra is not None:
            self.counter = Stateful(extra)


class Stateful(nn.Module):
    """A module with an extra state."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


class Windowed(torch.optim.lr_scheduler.LRScheduler):
    """A scheduler whose rates depend on a state of many types."""

    def __init__(self, optimizer):
        self.seen = deque(maxlen=3)
        self.once, self.counts, self.by_step = set(), Counter(), {}
        self.span, self.scale = (0, 1), np.float32(0.1)
        self.total = np.zeros(2)
        self.rule = lambda step: 1 / step
        super().__init__(optimizer)

    def get_lr(self):
        step = self.last_epoch + 1
        self.seen.append(self.rule(step))
        self.once.add(step % 5)
        self.counts[step % 2] += 1
        self.by_step[step] = step
        self.total += self.span
        factor = sum(self.seen) + len(self.once) + self.counts[1] / (1 + len(self.by_step)) + self.total[1]
        return [float(self.scale * factor * base) for base in self.base_lrs]


class Remembering(torch.optim.SGD):
    """An optimizer with containers in its state, which decide its steps."""

    def __init__(self, params, held=None):
        super().__init__(params, lr=0.1)
        self.held = held
        self.param_groups[0]["decay"] = np.float32(0.7)
        self.param_groups[0]["range"] = (1, 2)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("gradients", deque(maxlen=2)).append(parameter.grad.clone())
                state.setdefault("name", "text")
                state["numbers"] = {**state.get("numbers", {}), len(state.get("numbers", ())): (1, 2)}
                state["held"] = self.held
                update = sum(state["gradients"]) * float(group["decay"]) / len(state["numbers"])
                parameter.sub_(group["lr"] * update)
        self.state["steps"] = self.state.get("steps", 0) + 1


class Own(Remembering):
    """The same with a class of its own, of which Burn has no record."""

    def state_dict(self):
        return super().state_dict()


def train(
    folder, epochs, model=None, optimizer=Sgd, rate=0.1, stop_after=None, recorder=NamedMpkGzFileRecorder
):
    model = model or Net()
    optimizer = optimizer() if optimizer is Sgd else optimizer(model.parameters())
    builder = LearnerBuilder(folder).num_epochs(epochs).devices(["cpu"]).with_application_logger(None)
    builder.with_file_checkpointer(recorder()).checkpoint("auto")
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = builder.build(model, optimizer, rate(optimizer) if callable(rate) else rate)
    learner.fit([(X[:3], Y[:3]), (X[3:], Y[3:])], [(X, Y)])
    return model


def weights_after_resume(folder, stop_after=None, **options):
    """Return the weights of four epochs, and those of a run that was interrupted and resumed."""
    models = [options.pop("model", Net) for _ in range(1)] * 3
    straight = train(folder / "straight", 4, models[0](), **options)
    train(folder / "resumed", 4 if stop_after else 2, models[1](), stop_after=stop_after, **options)
    return straight, train(folder / "resumed", 4, models[2](), **options)


@pytest.mark.parametrize("stop_after", [None, 4])
def test_scheduler_resumes_with_values_of_all_types(tmp_path, stop_after):
    straight, resumed = weights_after_resume(
        tmp_path, stop_after, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0), rate=Windowed
    )

    assert torch.equal(straight.weight, resumed.weight)


@pytest.mark.parametrize("kind", [Remembering, Own])
def test_optimizer_resumes_with_values_of_all_types(tmp_path, kind):
    made = []

    def build(parameters):
        made.append(kind(parameters))
        return made[-1]

    straight, resumed = weights_after_resume(tmp_path, optimizer=build, rate=0.05)

    assert torch.equal(straight.weight, resumed.weight)
    one, other = ([*each.state.values(), each.param_groups] for each in (made[0], made[2]))
    assert str(one[0]) == str(other[0])
    assert one[2] == other[2] == 8
    assert (other[3][0]["range"], type(other[3][0]["decay"])) == ((1, 2), np.float32)


def test_extra_state_of_a_module_is_restored_with_its_types(tmp_path):
    state = {1: (2, {3}), "seen": deque([1], 2), "array": np.arange(2)}
    train(tmp_path, 1, Net(state))

    resumed = train(tmp_path, 2, Net({}))

    assert str(resumed.counter.state) == str(state)


class HoldsScheduler(torch.optim.lr_scheduler.LRScheduler):
    """A scheduler with another one in it, whose state `state_dict` does not contain."""

    def __init__(self, optimizer):
        self.after = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        super().__init__(optimizer)

    def get_lr(self):
        return self.base_lrs


class OwnScheduler(Scheduler):
    def state_dict(self):
        return {"iteration": self.iteration, "generator": torch.Generator()}


class TextScheduler(Scheduler):
    def burn_state(self):
        return {"phase": "warm up"}


class Held(Net):
    def training_state(self):
        return {"next": iter([])}

    def load_training_state(self, state):
        pass


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (
            {"rate": HoldsScheduler, "optimizer": sgd},
            "['after'] is of the type torch.optim.lr_scheduler.StepLR",
        ),
        (
            {"rate": OwnScheduler(0.1)},
            "OwnScheduler.state_dict()['generator'] is of the type torch._C.Generator",
        ),
        ({"model": Held()}, "Held.training_state()['next'] is of the type list_iterator"),
        (
            {"model": Net({"a": object()})},
            "Net.state_dict()['counter._extra_state']['a'] is of the type object",
        ),
    ],
)
def test_state_that_no_checkpoint_can_hold_is_refused_before_training(tmp_path, options, place):
    with pytest.raises(BuilderError) as caught:
        train(tmp_path, 1, **options)

    assert place in str(caught.value)
    assert "which no checkpoint can hold. Keep tensors, arrays" in str(caught.value)


@pytest.mark.parametrize("kind", [Remembering, Own])
def test_state_of_an_optimizer_that_no_checkpoint_can_hold_is_refused_after_its_first_step(tmp_path, kind):
    steps = []

    def build(parameters):
        optimizer = kind(parameters, held=object())
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        return optimizer

    with pytest.raises(
        RecordError, match=rf"the state of the {kind.__name__}\['held'\] is of the type object"
    ):
        train(tmp_path, 1, optimizer=build)

    assert len(steps) == 1


def test_group_of_an_optimizer_that_no_checkpoint_can_hold_is_refused_before_training(tmp_path):
    def build(parameters):
        return torch.optim.Adam([{"params": list(parameters), "rule": object()}])

    with pytest.raises(BuilderError, match=r"a parameter group of the Adam\['rule'\] is of the type object"):
        train(tmp_path, 1, optimizer=build)


def test_state_of_a_schedule_that_its_format_cannot_hold_is_refused_before_training(tmp_path):
    train(tmp_path / "text", 1, rate=TextScheduler(0.1))

    with pytest.raises(BuilderError, match="phase is a str, but burnpack stores only tensors and numbers"):
        train(tmp_path / "burnpack", 1, rate=TextScheduler(0.1), recorder=BurnpackRecorder)


class Described(ClassificationStep, nn.Module):
    """A classifier whose parts have the names of the parts of a tensor in a record."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(3, 2) for name in ("bytes", "shape", "dtype")})

    def forward(self, inputs):
        return sum(part(inputs) for part in self.parts.values())


@pytest.mark.parametrize("recorder", [NamedMpkGzFileRecorder, BurnpackRecorder])
def test_run_of_a_model_with_the_names_of_a_tensors_parts_resumes(recorder, tmp_path):
    results = []
    for folder, epochs in (("straight", 2), ("resumed", 1), ("resumed", 2)):
        builder = LearnerBuilder(tmp_path / folder).num_epochs(epochs).renderer(NoRenderer())
        builder.with_file_checkpointer(recorder()).checkpoint("auto").average_weights(Ema(decay=0.9))
        learner = builder.build(Described(), Sgd(momentum=0.9), 0.1)
        results.append(learner.fit([(X, Y)], [(X, Y)]).state_dict())

    assert learner.resumed == "after epoch 1"
    assert all(torch.equal(results[0][name], results[2][name]) for name in results[0])


class Expanded(Net):
    """A model with buffers whose elements share memory, one of them in two places."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0]).expand(4, 2))
        self.inner = nn.Module()
        self.inner.register_buffer("scale", self.scale)
        self.register_buffer("mask", torch.ones(1).expand(2), persistent=False)

    def forward(self, inputs):
        return super().forward(inputs) * self.scale[0] * self.mask


def test_run_with_expanded_buffers_is_averaged_and_resumes(tmp_path):
    results = []
    for folder, epochs in (("straight", 2), ("resumed", 1), ("resumed", 2)):
        builder = LearnerBuilder(tmp_path / folder).num_epochs(epochs).renderer(NoRenderer())
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").average_weights(
            Ema(decay=0.9)
        )
        model = Expanded()
        learner = builder.build(model, Sgd(momentum=0.9), 0.1)
        assert model.inner.scale is model.scale
        results.append(learner.fit([(X, Y)], [(X, Y)]).state_dict())

    assert learner.resumed == "after epoch 1"
    assert all(torch.equal(results[0][name], results[2][name]) for name in results[0])
    assert torch.equal(results[2]["scale"], Expanded().scale)


class Growing(Net):
    """A model with a buffer to which each batch of training adds an element."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, inputs):
        if self.training:
            self.seen = torch.cat([self.seen, inputs.mean().reshape(1)])
        return super().forward(inputs)


class Late(Net):
    """A model whose buffer has a value from the first batch on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", None)

    def forward(self, inputs):
        if self.scale is None:
            self.scale = inputs.std()
        return super().forward(inputs) / self.scale


class AddGroup(Hook):
    """A hook that gives the optimizer the bias in epoch 2."""

    def before_epoch(self, context):
        if context.epoch == 2:
            context.optimizer.add_param_group({"params": [context.model.bias]})


@pytest.mark.parametrize(
    ("model", "hooks", "message"),
    [
        (
            Growing,
            [],
            r"buffer seen of Growing had the shape \(0,\) when.* has the shape \(1,\): .*Register it",
        ),
        (Late, [], r"buffer scale of Late had no value when the learner was built.* has the shape \(\): "),
        (Net, [AddGroup()], r"the SGD had groups of \[1\] parameters when.* \[1, 1\]: .*Create it with all"),
    ],
)
def test_state_that_a_resume_could_not_load_is_refused_when_it_is_saved(model, hooks, message, tmp_path):
    model = model()
    builder = LearnerBuilder(tmp_path).num_epochs(3).renderer(NoRenderer()).hooks(*hooks)
    builder.with_file_checkpointer(NamedMpkGzFileRecorder())
    learner = builder.build(model, torch.optim.SGD([model.weight], 0.1), None)

    with pytest.raises(RecordError, match=message):
        learner.fit([(X, Y)], [(X, Y)])

    if hooks:
        assert (tmp_path / "checkpoint" / "trainer-1.mpk.gz").exists()


def build_scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2)))


def build_traced():
    return torch.jit.trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), X)


@pytest.mark.parametrize("build", [build_scripted, build_traced])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_model_with_a_module_of_torchscript_is_averaged_and_resumes(build, tmp_path):
    class Scripted(ClassificationStep, nn.Sequential):
        pass

    results = []
    for folder, epochs in (("straight", 2), ("resumed", 1), ("resumed", 2)):
        builder = LearnerBuilder(tmp_path / folder).num_epochs(epochs).seed(1).renderer(NoRenderer())
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
        torch.manual_seed(0)
        model = Scripted(build(), nn.Linear(4, 2))
        learner = builder.average_weights(Ema(decay=0.9)).build(model, Sgd(momentum=0.9), 0.1)
        results.append(learner.fit([(X, Y)], [(X, Y)]).state_dict())

    assert learner.resumed == "after epoch 1"
    assert all(torch.equal(results[0][name], results[2][name]) for name in results[0])
