"""A model that torch compiles trains compiled, and its files are those of the plain model."""

from collections import UserDict
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from long_tests import long
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.devices.compilation import CompiledShapes
from stages.learner import EvaluatorBuilder, LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, NonFiniteError
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer


class Net(ClassificationStep, nn.Module):
    def __init__(self):
        torch.manual_seed(3)
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class Backend:
    """Counts the calls of compiled graphs."""

    def __init__(self):
        self.calls = 0

    def __call__(self, graph, inputs):
        def call(*arguments):
            self.calls += 1
            return graph.forward(*arguments)

        return call


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Forget what other tests compiled: torch compiles no more than a few versions of a function."""
    torch.compiler.reset()


def plain(backend):
    return Net()


def wrapped(backend):
    return torch.compile(Net(), backend=backend)


def in_place(backend):
    model = Net()
    model.compile(backend=backend)
    return model


def submodule(backend):
    model = Net()
    model.body = torch.compile(model.body, backend=backend)
    return model


WAYS = {"torch.compile": wrapped, "in place": in_place, "submodule": submodule}


def batches():
    inputs = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    return [(each, each[:, :3].argmax(1)) for each in inputs]


def fit(directory, model, epochs=1, devices=("cpu",)):
    builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(devices).metrics(LossMetric())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").renderer(NoRenderer())
    learner = builder.build(model, Adam(), 0.05)
    learner.fit(batches(), batches())
    return learner


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_every_step_of_a_compiled_model_is_compiled_and_its_files_are_those_of_the_plain_model(
    make, tmp_path
):
    backend = Backend()

    learner = fit(tmp_path / "compiled", make(backend))
    fit(tmp_path / "plain", plain(None))

    assert backend.calls == 6  # three batches of training, three of validation
    assert read_run_files(tmp_path / "compiled") == read_run_files(tmp_path / "plain")
    assert list(learner.model.state_dict()) == list(Net().state_dict())
    learner.model(batches()[0][0])
    assert backend.calls == 7


@pytest.mark.parametrize("ways", [(wrapped, plain), (plain, wrapped), long((submodule, wrapped))])
def test_run_resumes_with_and_without_compilation(ways, tmp_path):
    for epochs, make in enumerate(ways, start=1):
        fit(tmp_path / "resumed", make(Backend()), epochs)
    fit(tmp_path / "uninterrupted", Net(), 2)

    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")


def test_messages_name_the_parameters_of_the_plain_model(tmp_path):
    model = torch.compile(Net(), backend=Backend())
    nn.init.constant_(model.head.bias, torch.nan)

    with pytest.raises(NonFiniteError, match=r"NaN in body\.0\.weight"):
        fit(tmp_path, model)


def test_compiled_object_of_the_user_has_the_trained_weights(tmp_path):
    compiled = wrapped(Backend())

    learner = fit(tmp_path, compiled)

    inputs = batches()[0][0]
    assert torch.equal(compiled.eval()(inputs), learner.model.eval()(inputs))


def test_evaluator_runs_a_compiled_model_compiled(tmp_path):
    backend = Backend()

    builder = EvaluatorBuilder(tmp_path).metrics(LossMetric()).device("cpu").renderer(NoRenderer())
    builder.build(wrapped(backend)).eval("mine", batches())

    assert backend.calls == 3


def test_compiled_model_without_steps_is_rejected_by_its_own_name(tmp_path):
    with pytest.raises(BuilderError, match="Linear has no train_step"):
        LearnerBuilder(tmp_path).build(torch.compile(nn.Linear(1, 1), backend=Backend()), Adam())


def test_compile_in_place_without_effect_logs_a_warning(tmp_path, caplog):
    class Plain(ClassificationStep, nn.Sequential):
        pass

    model = Plain(nn.Linear(4, 3))
    model.compile(backend=Backend())

    fit(tmp_path, model)

    assert "Plain.compile() has no effect" in caplog.text


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_gradient_checkpointing_of_a_compiled_model_is_rejected_at_build(make, tmp_path):
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).gradient_checkpointing()

    with pytest.raises(BuilderError, match="cannot be combined with torch.compile, and Net is compiled"):
        builder.build(make(Backend()), Adam())


def fit_compiled(directory, backend, batches_of_split, epochs=1):
    builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(["cpu"]).metrics(LossMetric())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").renderer(NoRenderer())
    learner = builder.compile(backend=backend).build(Net(), Adam(), 0.05)
    learner.fit(batches_of_split, batches_of_split)
    return learner


def test_compile_option_compiles_every_step_and_changes_no_file(tmp_path):
    backend = Backend()

    fit_compiled(tmp_path / "compiled", backend, batches())
    fit(tmp_path / "plain", Net())

    assert backend.calls == 6
    assert read_run_files(tmp_path / "compiled") == read_run_files(tmp_path / "plain")


def test_batches_of_another_shape_run_uncompiled(tmp_path):
    backend, [*full, (inputs, targets)] = Backend(), batches()

    learner = fit_compiled(tmp_path, backend, [*full, (inputs[:3], targets[:3])])

    assert backend.calls == 4, "two full batches of each split"
    assert learner.epoch == 1


def scale_outputs(graph, inputs):
    """Compile *graph* to one with other numbers, so that a step that is not compiled differs."""
    return lambda *arguments: tuple(1.1 * each for each in graph.forward(*arguments))


@pytest.mark.parametrize("stop_after", [3, *map(long, (1, 2, 4, 5, 6, 7, 8))])
def test_run_that_resumes_before_a_smaller_batch_compiles_what_an_uninterrupted_one_does(
    stop_after, tmp_path
):
    *full, (inputs, targets) = batches()
    split = [*full, (inputs[:3], targets[:3]), *full]

    def run(name, stops):
        for stop in stops:
            torch.compiler.reset()
            builder = LearnerBuilder(tmp_path / name).seed(1).devices(["cpu"]).metrics(LossMetric())
            builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").num_epochs(1)
            builder.renderer(StopAfter(builder.interrupter(), stop) if stop else NoRenderer())
            builder.compile(backend=scale_outputs).build(Net(), Adam(), 0.05).fit(split, split)
        return read_run_files(tmp_path / name)

    assert run("resumed", [stop_after, None]) == run("uninterrupted", [None])


def test_compile_mode_with_graphs_of_its_own_is_refused(tmp_path):
    with pytest.raises(BuilderError, match=r"compile\('reduce-overhead'\): the mode must be one of default"):
        LearnerBuilder(tmp_path).compile("reduce-overhead")


@pytest.mark.long
def test_inductor_changes_the_loss_by_less_than_a_millionth(tmp_path):
    compiled = fit_compiled(tmp_path / "compiled", "inductor", batches(), epochs=3)
    plain_run = fit(tmp_path / "plain", Net(), 3)

    # a bias before a batch norm has gradients of rounding errors, which Adam enlarges: a validation shows it
    values = [each.history.value(3, "train", "Loss") for each in (compiled, plain_run)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@dataclass(frozen=True)
class Pair:
    inputs: torch.Tensor
    targets: torch.Tensor


@pytest.mark.parametrize(
    "build",
    [
        torch.zeros,
        lambda size: ([torch.zeros(size)], torch.zeros(size)),
        lambda size: {"inputs": torch.zeros(size), "name": "train"},
        lambda size: UserDict(inputs=torch.zeros(size)),
        lambda size: Pair(torch.zeros(size), torch.zeros(size)),
    ],
    ids=["tensor", "tuple", "dict", "mapping of a tokenizer", "dataclass"],
)
def test_batch_of_another_shape_than_the_first_runs_eagerly(build):
    shapes = CompiledShapes()

    def is_compiled(size):
        with (context := shapes.context(Split.TRAIN, build(size))):
            return isinstance(context, nullcontext)

    assert [*map(is_compiled, (8, 8, 3, 8))] == [True, True, False, True]
