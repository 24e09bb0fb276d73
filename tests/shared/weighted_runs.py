"""Runs whose losses are means over something else than samples, and the same by a plain loop.

Each case has batches of different weights, one of which counts nothing. The plain loop trains on the
concatenated batches of a window as on one large batch, by a loss that PyTorch computes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric, PerplexityMetric
from stages.models import ClassificationStep, backward
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

CLASSES = 3
EPOCHS = 2
RATE = 0.5
SIZES = (3, 1, 4, 2, 5, 3, 2)
"""The samples of each batch; with a window of 3, one batch is left over."""
POSITIONS = {"samples": (), "sequences": (5,), "images": (2, 3)}
"""The shape of the positions of a sample."""
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


@dataclass(frozen=True)
class Case:
    """A loss: the positions of a sample, the options of the loss, and the targets that are ignored."""

    positions: str = "samples"
    class_weights: tuple[float, ...] | None = None
    smoothing: float = 0.0
    has_ignored: bool = False
    has_token_weights: bool = False


WEIGHTS = (1.0, 10.0, 0.3)
CASES = {
    "plain": Case(),
    "class-weights": Case(class_weights=WEIGHTS),
    "zero-class-weight": Case(class_weights=(0.0, 2.0, 0.7)),
    "smoothing": Case(smoothing=0.1),
    "all-options": Case(class_weights=WEIGHTS, smoothing=0.2, has_ignored=True),
    "ignored": Case(has_ignored=True),
    "ignored-in-sequences": Case("sequences", has_ignored=True),
    "ignored-in-images": Case("images", has_ignored=True),
    "smoothed-sequences": Case("sequences", smoothing=0.1, has_ignored=True),
    "weighted-images": Case("images", class_weights=WEIGHTS, has_ignored=True),
    "token-weights": Case("sequences", has_token_weights=True),
}


class Tokens(nn.Module):
    """A step whose loss is a mean over tokens by weights in the batch; without a *floor* it may be NaN."""

    floor = 0.0

    def train_step(self, batch):
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss, item.weight), item)

    def valid_step(self, batch):
        inputs, targets, weights = batch
        logits = self(inputs)
        losses = F.cross_entropy(logits, targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum().clamp(min=self.floor)
        return ClassificationOutput(loss, logits, targets, weights.sum())


def build_model(case, dtype):
    """Return a model with one linear layer, the same for every call."""
    layer = (nn.Linear, nn.Conv1d, nn.Conv2d)[len(POSITIONS[case.positions])]
    kind = type("Model", (Tokens if case.has_token_weights else ClassificationStep, layer), {})
    torch.manual_seed(1)
    model = kind(4, CLASSES, *[1][: layer is not nn.Linear]).to(dtype)
    if case.class_weights or case.smoothing:
        model.configure_loss(class_weights=case.class_weights, label_smoothing=case.smoothing)
    return model


def build_batches(case, dtype):
    """Return the batches of an epoch."""
    generator = torch.Generator().manual_seed(2)
    shape = POSITIONS[case.positions]
    inputs = torch.randn(sum(SIZES), 4, *shape, generator=generator).to(dtype)
    targets = torch.randint(0, CLASSES, (sum(SIZES), *shape), generator=generator)
    weights = torch.rand(targets.shape, generator=generator).to(dtype)
    ignored = torch.rand(targets.shape, generator=generator) < 0.4
    ignored[SIZES[0] : SIZES[0] + SIZES[1]] = True  # a batch that counts nothing
    ignored[-SIZES[-1]] = True  # the share of the first of two ranks in the batch that is left over
    if case.has_ignored:
        targets[ignored] = -100
    if case.class_weights and 0.0 in case.class_weights:
        targets[SIZES[0] : SIZES[0] + SIZES[1]] = case.class_weights.index(0.0)
    tensors = [inputs, targets]
    if case.has_token_weights:
        tensors.append(weights.masked_fill(ignored, 0.0))
    return [*zip(*(each.split(SIZES) for each in tensors), strict=True)]


def train(folder, case, window, leftover, *, dtype=torch.float64, strategy="auto", saves=False):
    """Return the parameters and the epoch values of a run on *window* batches a step."""
    model, batches = build_model(case, dtype), build_batches(case, dtype)
    model.floor = 1e-30 if strategy == "fsdp" else 0.0
    builder = LearnerBuilder(folder).metrics(LossMetric(), PerplexityMetric()).num_epochs(EPOCHS)
    builder.renderer(NoRenderer()).devices(["cpu"]).strategy(strategy)
    builder.grads_accumulation(window, leftover=leftover)
    if saves:
        builder.with_file_checkpointer(NamedMpkGzFileRecorder())
    learner = builder.build(model, torch.optim.SGD(model.parameters(), RATE), RATE)
    learner.fit(batches, batches)
    values = [
        learner.history.value(epoch, split, name)
        for epoch in range(1, EPOCHS + 1)
        for split in ("train", "valid")
        for name in ("Loss", "Perplexity")
    ]
    weights = [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]
    return [each.detach().double().flatten().tolist() for each in weights], values


def train_plainly(case, window, leftover):
    """Return what `train` does, by a loop in float64 that knows neither batches nor windows."""
    model, batches = build_model(case, torch.float64), build_batches(case, torch.float64)
    pending, values = [], []
    for _ in range(EPOCHS):
        sums = torch.zeros(4, dtype=torch.float64)
        for batch in batches:
            sums += measure(model, case, [batch])
            pending.append(batch)
            if len(pending) == window:
                step(model, case, pending)
                pending = []
        if leftover == "flush" and pending:
            step(model, case, pending)
        pending = pending if leftover == "carry" else []
        values += [*means(sums), *means(measure(model, case, batches))]
    return [each.detach().flatten().tolist() for each in model.parameters()], values


def measure(model, case, batches):
    """Return the sum of the losses of *batches* and its divisor, and those of the perplexity."""
    with torch.no_grad():
        total, divisor, logits, targets = sums_of(model, case, batches)
        counted = targets != -100
        likelihood = F.cross_entropy(logits, targets, reduction="sum")
    return torch.stack([total, divisor, likelihood, counted.sum().double()])


def means(sums):
    """Return the loss and the perplexity."""
    total, divisor, likelihood, count = sums.tolist()
    return total / divisor, math.exp(likelihood / count)


def step(model, case, batches):
    """Make one step of gradient descent on *batches* as one large batch."""
    total, divisor, *_ = sums_of(model, case, batches)
    if divisor > 0:
        gradients = torch.autograd.grad(total / divisor, [*model.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(RATE * gradient)


def sums_of(model, case, batches):
    """Return the sum of the losses of all targets, its divisor, the logits (N, C) and the targets (N,)."""
    inputs, targets, *weights = (torch.cat(each) for each in zip(*batches, strict=True))
    logits, targets = model(inputs).movedim(1, -1).reshape(-1, CLASSES), targets.flatten()
    if case.has_token_weights:
        weights = weights[0].flatten()
        return (
            (F.cross_entropy(logits, targets, reduction="none") * weights).sum(),
            weights.sum(),
            logits,
            targets,
        )
    weights = torch.tensor(case.class_weights or [1.0] * CLASSES, dtype=torch.float64)
    smoothing = case.smoothing
    log = -logits.log_softmax(1)
    counted = targets != -100
    chosen = targets.clamp(min=0)
    smooth = (log * weights).sum(1) * smoothing / CLASSES
    losses = (1 - smoothing) * weights[chosen] * log.gather(1, chosen[:, None])[:, 0] + smooth
    return losses[counted].sum(), weights[chosen][counted].sum(), logits, targets


def assert_close(found, expected, tolerance):
    """Assert that two results of `train` differ by at most *tolerance*, relative to 1."""
    for ours, theirs in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(
            torch.tensor(ours).double(), torch.tensor(theirs).double(), rtol=tolerance, atol=tolerance
        )
    torch.testing.assert_close(
        torch.tensor(found[1]).double(), torch.tensor(expected[1]).double(), rtol=tolerance, atol=tolerance
    )
