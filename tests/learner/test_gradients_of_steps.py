"""The loop computes what a textbook loop computes, however a step uses ``.grad``."""

import weakref

import pytest
import torch
from long_tests import covering_cases
from torch import nn
from torch.nn import functional

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.learner import LearnerBuilder
from stages.models import ClassificationStep, backward
from stages.optim import Muon, NonFinite, Sgd, build_optimizer
from stages.renderers import NoRenderer

BATCHES, EPOCHS = 4, 2


class Net(ClassificationStep, nn.Sequential):
    pass


class Adversarial(Net):
    """Calls ``loss.backward()`` for the gradient of the inputs before the training step."""

    def train_step(self, batch):
        return super().train_step((attacked(self, *batch), batch[1]))


class OwnBackward(Net):
    """Returns the ``.grad`` that its own ``loss.backward()`` filled."""

    def train_step(self, batch):
        logits = self(batch[0])
        loss = self.loss(logits, batch[1])
        loss.backward()
        item = ClassificationOutput(loss, logits, batch[1])
        return TrainOutput(self, [parameter.grad for parameter in self.parameters()], item)


def attacked(model, inputs, targets):
    inputs = inputs.clone().requires_grad_()
    functional.cross_entropy(model(inputs), targets).backward()
    return (inputs + 0.1 * inputs.grad.sign()).detach()


def net(kind=Net):
    torch.manual_seed(3)
    return kind(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))


def batches():
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(8, 4, generator=generator) for _ in range(BATCHES)]
    return [(each, each[:, :3].argmax(1)) for each in inputs]


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.05, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "muon": lambda p: build_optimizer(Muon(kind="muon", learning_rate=0.02), p),
    "lbfgs": torch.optim.LBFGS,
    "lbfgs with strong Wolfe": lambda p: torch.optim.LBFGS(p, lr=0.5, line_search_fn="strong_wolfe"),
}


def textbook(make, prepare):
    model = net()
    optimizer = make(model.parameters())
    for inputs, targets in batches() * EPOCHS:

        def closure(inputs=inputs, targets=targets):
            seen = prepare(model, inputs, targets)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(seen), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def fit(directory, model, make, change=lambda builder: builder):
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).seed(1).devices(["cpu"]).renderer(NoRenderer())
    change(builder).build(model, make(model.parameters())).fit(batches(), batches())
    return model


def assert_close(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


KINDS = {
    "plain": (Net, lambda model, inputs, targets: inputs),
    "adversarial": (Adversarial, attacked),
    "own backward": (OwnBackward, lambda model, inputs, targets: inputs),
}


@pytest.mark.parametrize(("make", "kind"), covering_cases(OPTIMIZERS, [*KINDS], strength=1))
def test_trained_weights_equal_those_of_a_textbook_loop(make, kind, tmp_path):
    step, prepare = KINDS[kind]

    trained = fit(tmp_path, net(step), make)

    assert_close(trained, textbook(make, prepare))
    assert all(parameter.grad is None for parameter in trained.parameters())


class Counting(OwnBackward):
    """Has an infinite loss in its second step."""

    steps = 0

    def loss(self, logits, targets):
        if not torch.is_grad_enabled():
            return super().loss(logits, targets)
        self.steps += 1
        return super().loss(logits, targets) * (torch.inf if self.steps == 2 else 1.0)


def test_grad_is_none_after_a_skipped_batch(tmp_path):
    def skip(builder):
        return builder.non_finite(NonFinite(kind="skip"))

    trained = fit(tmp_path, net(Counting), OPTIMIZERS["sgd fused"], skip)

    assert all(parameter.isfinite().all() for parameter in trained.parameters())


class Optimizing(OwnBackward):
    """Steps the optimizer itself and does not clear ``.grad``."""

    def optimize(self, optimizer, gradients, learning_rate):
        for parameter, gradient in zip(self.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def test_gradients_from_optimize_do_not_accumulate(tmp_path):
    make = OPTIMIZERS["sgd"]

    assert_close(fit(tmp_path, net(Optimizing), make), textbook(make, KINDS["plain"][1]))


def test_lbfgs_evaluates_a_batch_as_often_as_torch(tmp_path):
    class Normed(Net):
        def __init__(self):
            torch.manual_seed(3)
            super().__init__(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3))

    model = Normed()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    for batch in batches() * EPOCHS:
        optimizer.step(lambda batch=batch: give(model, model.train_step(batch)))

    trained = fit(tmp_path, Normed(), lambda parameters: torch.optim.LBFGS(parameters, lr=0.1))

    assert torch.equal(trained[1].running_mean, model[1].running_mean)
    assert trained[1].num_batches_tracked == model[1].num_batches_tracked


def give(model, step):
    for parameter, gradient in zip(model.parameters(), step.gradients, strict=True):
        parameter.grad = gradient
    return step.item.loss


def test_backward_returns_the_gradient_of_its_loss_only():
    model = nn.Linear(2, 1, bias=False)
    loss = model(torch.tensor([[3.0, 4.0]])).sum()
    loss.backward(retain_graph=True)

    assert backward(model, loss)[0].tolist() == [[3.0, 4.0]]
    assert model.weight.grad is None


class Detached(Net):
    def forward(self, inputs):
        return super().forward(inputs).detach().requires_grad_()


@pytest.mark.parametrize("accumulated", [1, 3])
def test_first_step_without_gradients_is_rejected(accumulated, tmp_path):
    with pytest.raises(BuilderError, match=r"epoch 1, batch \d: .*Detached.*all 2 gradients are None"):
        fit(
            tmp_path,
            net(Detached),
            OPTIMIZERS["adam fused"],
            lambda builder: builder.grads_accumulation(accumulated),
        )


class Watching(Net):
    """Counts the gradients of its last step that are in memory when the next one begins."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.last, self.kept = [], 0

    def train_step(self, batch):
        self.kept += sum(each() is not None for each in self.last)
        step = super().train_step(batch)
        self.last = [weakref.ref(each) for each in step.gradients]
        return step


@pytest.mark.parametrize("window", [1, 3])
def test_gradients_are_freed_before_the_next_ones_are_computed(window, tmp_path):
    builder = LearnerBuilder(tmp_path).num_epochs(EPOCHS).devices(["cpu"]).renderer(NoRenderer())
    model = net(Watching)

    learner = builder.grads_accumulation(window).build(model, Sgd(), 0.1)
    learner.fit(batches(), batches())

    assert len(model.last) == 2
    assert model.kept == 0
