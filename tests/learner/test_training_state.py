"""A model adds state of its own to the checkpoint, and a resumed run continues with it."""

import pytest
import torch
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError, RecordError
from stages.contracts.outputs import RegressionOutput, TrainOutput
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.learner.resume.training_state import load_training_state, training_state
from stages.metrics import LossMetric
from stages.records import NamedMpkGzFileRecorder, OriginalPrecision
from stages.renderers import NoRenderer


class Forgetful(nn.Module):
    """A generative adversarial pair: the learner's optimizer trains one part, its own the other."""

    def __init__(self):
        torch.manual_seed(3)
        super().__init__()
        self.generator, self.critic = nn.Linear(2, 4), nn.Linear(4, 1)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.02)
        self.updates = 0

    def train_step(self, batch):
        fake = self.generator(torch.randn(len(batch.inputs), 2))
        loss = self.critic(fake).mean() - self.critic(batch.inputs).mean()
        loss.backward()
        item = RegressionOutput(loss, fake, batch.inputs)
        return TrainOutput(self, [parameter.grad for parameter in self.parameters()], item)

    def valid_step(self, batch):
        score = self.critic(batch.inputs)
        return RegressionOutput(score.mean(), score, score)

    def optimize(self, optimizer, gradients, learning_rate):
        for parameter, gradient in zip(self.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        self.critic_optimizer.step()
        self.updates += 1


class Gan(Forgetful):
    def training_state(self):
        return {"critic_optimizer": self.critic_optimizer.state_dict(), "updates": self.updates}

    def load_training_state(self, state):
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.updates = state["updates"]


def builder_in(directory):
    builder = LearnerBuilder(directory).num_epochs(3).seed(1).devices(["cpu"]).metrics(LossMetric())
    return builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").renderer(NoRenderer())


def run(directory, model, stop_after=None, epochs=3):
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(8).shuffle(5)
    loader = loader.build(TensorDataset(inputs, torch.zeros(20)))
    builder = builder_in(directory).num_epochs(epochs)
    if stop_after:
        builder.renderer(StopAfter(builder.interrupter(), stop_after))
    builder.build(model, torch.optim.Adam(model.generator.parameters(), lr=0.05)).fit(loader, loader)
    return model


def test_resumed_gan_equals_uninterrupted_one(tmp_path):
    uninterrupted = run(tmp_path / "a", Gan())

    for stop_after in (2, 1, 4, 5):
        run(tmp_path / "b", Gan(), stop_after)
    resumed = run(tmp_path / "b", Gan())

    assert resumed.updates == uninterrupted.updates == 9
    assert read_run_files(tmp_path / "b") == read_run_files(tmp_path / "a")


class Stateful(nn.Module):
    """Holds a state inside another module."""

    state = None

    def training_state(self):
        return self.state

    def load_training_state(self, state):
        self.state = state


STATE = {
    "numbers": (1, -2.5, True, None, 2**80, float("inf")),
    "by index": {0: torch.arange(3), -1: [torch.tensor(2.0), "text"], (1, "a"): {}},
    "nested": [(), [], {"$tuple": 1, "": ()}],
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other)) and len(one) == len(other)
    return type(one) is type(other) and one == other


def test_nested_values_and_tensors_are_restored_from_a_file(tmp_path):
    saved, loaded = nn.Sequential(Stateful()), nn.Sequential(Stateful())
    saved[0].state = STATE
    recorder = NamedMpkGzFileRecorder(OriginalPrecision)

    recorder.record(training_state(saved), tmp_path / "state")
    load_training_state(loaded, recorder.load(tmp_path / "state"))

    assert same(STATE, loaded[0].state)


def test_value_that_a_checkpoint_cannot_hold_is_reported():
    model = Stateful()
    model.state = {"a": [object()]}

    with pytest.raises(RecordError, match=r"Stateful.training_state\(\)\['a'\]\[0\] is of the type object"):
        training_state(model)


def in_attribute(model):
    model.held = torch.optim.SGD(model.critic.parameters())


def in_containers(model):
    model.held = {"all": [(torch.optim.SGD(model.critic.parameters()),)]}


def in_submodule(model):
    model.critic.held = torch.optim.SGD(model.critic.parameters())


def in_scheduler(model):
    model.held = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.critic.parameters()), 1)


@pytest.mark.parametrize("hold", [in_attribute, in_containers, in_submodule, in_scheduler])
def test_optimizer_in_a_model_without_training_state_logs_a_warning_at_build(hold, tmp_path, caplog):
    for kind, warned in ((Forgetful, True), (Gan, False)):
        caplog.clear()
        model = kind()
        del model.critic_optimizer
        hold(model)
        if kind is Gan:
            model.critic_optimizer = torch.optim.SGD(model.critic.parameters())

        builder_in(tmp_path).build(model, torch.optim.Adam(model.generator.parameters()))

        assert ("SGD in 'held" in caplog.text) == warned


def test_optimizer_of_the_learner_logs_no_warning(tmp_path, caplog):
    model = Forgetful()

    builder_in(tmp_path).build(model, model.critic_optimizer)

    assert not caplog.text


def test_module_with_one_of_the_two_methods_is_rejected(tmp_path):
    class Half(Forgetful):
        def training_state(self):
            return {}

    model = Half()

    with pytest.raises(BuilderError, match="defines only one of training_state"):
        builder_in(tmp_path).build(model, torch.optim.Adam(model.generator.parameters()))


def test_checkpoint_without_training_state_can_be_restored(tmp_path, caplog):
    run(tmp_path, Forgetful(), epochs=1)

    resumed = run(tmp_path, Gan())

    assert resumed.updates == 6
    assert "the checkpoint has no training_state of Gan" in caplog.text
