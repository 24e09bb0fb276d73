"""Random configurations of a run, and the same training by a plain loop in float64.

    python tests/oracle/oracle.py --count 300 --seed 1

The plain loop uses torch's tensors, optimizers and autograd, and nothing of this project: it knows neither
batches of a window nor ranks nor checkpoints, and trains on a window as on one large batch. Every
configuration is a function of its seed. `make long` runs 300 of them.
"""

import argparse
import math
import random
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).parents[2]
CLASSES = 3
TOLERANCE = {"float64": 1e-10, "float32": 2e-4}
"""The largest difference, relative to the largest number; Adam amplifies rounding of small gradients."""
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "sgd, momentum": lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9, weight_decay=0.01),
    "adam": lambda p, rate: torch.optim.Adam(p, rate, eps=1e-3),
    "adamw": lambda p, rate: torch.optim.AdamW(p, rate, eps=1e-3, weight_decay=0.1),
    "adam, fused": lambda p, rate: torch.optim.Adam(p, rate, eps=1e-3, fused=True),
    "rmsprop": lambda p, rate: torch.optim.RMSprop(p, rate, eps=1e-2, momentum=0.5),
    "adagrad": lambda p, rate: torch.optim.Adagrad(p, rate, eps=1e-3),
}
SCHEDULES = ("constant", "linear", "cosine", "exponential", "step")
POSITIONS = {"samples": (), "sequences": (4,), "images": (2, 3)}


@dataclass(frozen=True)
class Configuration:
    """The options of one run."""

    seed: int
    model: str
    positions: str
    optimizer: str
    schedule: str
    rate: float
    window: int
    leftover: str
    reduction: str
    clipping: tuple[str, float] | None
    average: tuple[str, float] | None
    class_weights: tuple[float, ...] | None
    smoothing: float
    ignored: float
    token_weights: bool
    precision: str
    ranks: int
    stops: tuple[int, ...]
    epochs: int
    sizes: tuple[int, ...]
    per: str
    warmup: int | str | None
    to_the_end: bool
    bias_rate: float

    def __str__(self) -> str:
        return ", ".join(f"{each.name} {getattr(self, each.name)}" for each in fields(self))


def draw(seed: int, ranks: int = 1) -> Configuration:
    """Return the configuration of *seed*."""
    r = random.Random(seed)  # noqa: S311
    tokens = r.random() < 0.2
    class_weights = None if tokens else r.choice([None, (1.0, 10.0, 0.3), (0.0, 2.0, 0.7)])
    # with smoothing, a batch of class 0 alone would have the weight 0 and a loss that is not a mean
    has_no_smoothing = tokens or (class_weights is not None and 0.0 in class_weights)
    return Configuration(
        seed=seed,
        model=r.choice(["linear", "hidden"]),
        positions=r.choice(list(POSITIONS)),
        optimizer=r.choice(list(OPTIMIZERS)),
        schedule=r.choice(SCHEDULES),
        rate=r.choice([0.01, 0.1]),
        window=r.choice([1, 2, 3, 4]),
        leftover=r.choice(["flush", "drop", "carry"]),
        reduction=r.choice(["mean", "mean", "sum"]),
        clipping=r.choice([None, None, ("value", 0.05), ("norm", 0.1), ("global_norm", 0.1)]),
        average=r.choice([None, None, ("ema", 0.7), ("swa", 2)]),
        class_weights=class_weights,
        smoothing=0.0 if has_no_smoothing else r.choice([0.0, 0.1]),
        ignored=0.0 if tokens else r.choice([0.0, 0.3, 0.8]),
        token_weights=tokens,
        precision=r.choice(["float64", "float64", "float32"]),
        ranks=ranks,
        stops=() if ranks > 1 else tuple(r.sample(range(1, 18), r.choice([0, 0, 1, 2]))),
        epochs=r.choice([1, 2, 3]),
        sizes=tuple(r.randint(1, 5) for _ in range(r.randint(2, 7))),
        per=r.choice(["batch", "batch", "update", "epoch"]),
        warmup=r.choice([None, None, 1, 3, "30 %", "1 epochs"]),
        to_the_end=r.choice([False, True]),
        bias_rate=r.choice([1.0, 1.0, 3.0]),
    )


def make_batches(c: Configuration, dtype: torch.dtype) -> list[tuple[torch.Tensor, ...]]:
    """Return the batches of an epoch: inputs, targets and, if a token has one, its weight."""
    generator = torch.Generator().manual_seed(c.seed)
    shape = sum(c.sizes), *POSITIONS[c.positions]
    inputs = torch.randn(shape[0], 4, *shape[1:], generator=generator)
    targets = torch.randint(0, CLASSES, shape, generator=generator)
    weights = torch.rand(shape, generator=generator)
    is_ignored = torch.rand(shape, generator=generator) < c.ignored
    if c.ignored:
        is_ignored[: c.sizes[0]] = True  # a batch that counts nothing
    targets[is_ignored] = -100
    parts = [inputs.to(dtype), targets, *([weights.to(dtype)] if c.token_weights else [])]
    return list(zip(*(each.split(c.sizes) for each in parts), strict=True))


def make_layers(c: Configuration) -> list[nn.Module]:
    """Return the layers of the model, the same for the same seed."""
    torch.manual_seed(c.seed)
    kind = (nn.Linear, nn.Conv1d, nn.Conv2d)[len(POSITIONS[c.positions])]
    size = [] if kind is nn.Linear else [1]
    if c.model == "linear":
        return [kind(4, CLASSES, *size)]
    return [kind(4, 5, *size), nn.Tanh(), kind(5, CLASSES, *size)]


def count_units(c: Configuration) -> int:
    """Return the number of batches, of windows that begin, or of epochs in the run."""
    batches = len(c.sizes)
    if c.per == "update" and c.leftover == "carry":
        return math.ceil(c.epochs * batches / c.window)
    return c.epochs * {"batch": batches, "update": math.ceil(batches / c.window), "epoch": 1}[c.per]


def count_warmup(c: Configuration) -> int:
    """Return the number of units of the warm-up."""
    match c.warmup:
        case "30 %":
            return max(1, round(0.3 * count_units(c)))
        case "1 epochs":
            return max(1, round(count_units(c) / c.epochs))
    return int(c.warmup or 0)


def build_optimizer(c: Configuration, model: nn.Module, name: str) -> torch.optim.Optimizer:
    """Return the optimizer *name*, with a group of its own for biases if they have another rate."""
    if c.bias_rate == 1.0:
        return OPTIMIZERS[name](model.parameters(), c.rate)
    weights = [each for each in model.parameters() if each.dim() > 1]
    biases = [each for each in model.parameters() if each.dim() == 1]
    return OPTIMIZERS[name]([{"params": weights}, {"params": biases, "lr": c.rate * c.bias_rate}], c.rate)


def rate_of(c: Configuration, unit: int) -> float:
    """Return the learning rate of a batch in *unit*, counted from 0."""
    warmup = count_warmup(c)
    if unit < warmup:
        return schedule_rate(c, 0) * (unit + 1) / (warmup + 1)
    return schedule_rate(c, unit - warmup)


def schedule_rate(c: Configuration, iteration: int) -> float:
    """Return the learning rate of *iteration* after the warm-up."""
    length = max(1, count_units(c) - count_warmup(c))
    match c.schedule:
        case "linear":
            length = length if c.to_the_end else 10
            share = min(iteration, length) / length
            return c.rate * (1 - share) + c.rate / 10 * share
        case "cosine":
            length = length if c.to_the_end else 8
            return c.rate * 0.5 * (1 + math.cos(math.pi * (iteration % (length + 1)) / length))
        case "exponential":
            return c.rate * 0.9**iteration
        case "step":
            return c.rate * 0.5 ** (iteration // 3)
    return c.rate


def loss_sums(c: Configuration, model: nn.Module, batches: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the losses of all targets of *batches*, and its divisor."""
    inputs, targets, *rest = (torch.cat(each) for each in zip(*batches, strict=True))
    log = -model(inputs).movedim(1, -1).reshape(-1, CLASSES).log_softmax(1)
    targets = targets.flatten()
    counted, chosen = targets != -100, targets.clamp(min=0)
    weights = torch.tensor(c.class_weights or [1.0] * CLASSES, dtype=torch.float64)
    own = rest[0].flatten() if rest else weights[chosen]
    losses = (1 - c.smoothing) * own * log.gather(1, chosen[:, None])[:, 0]
    losses = losses + c.smoothing / CLASSES * (log * weights).sum(1)
    return losses[counted].sum(), own[counted].sum()


def train_plainly(c: Configuration) -> tuple[list[float], list[float]]:
    """Return the weights, those of the average too, and the loss of each epoch on both splits."""
    model, batches = nn.Sequential(*make_layers(c)).double(), make_batches(c, torch.float64)
    parameters, values = [*model.parameters()], []
    optimizer = build_optimizer(c, model, c.optimizer.removesuffix(", fused"))
    average, averaged, pending, units = [], 0, [], 0

    def update(rate: float) -> None:
        nonlocal averaged, average
        if step(c, model, optimizer, pending, rate) and c.average and c.average[0] == "ema":
            average = blend(average, parameters, 1 - c.average[1])

    for epoch in range(1, c.epochs + 1):
        total = divisor = 0.0
        for batch in batches:
            with torch.no_grad():
                sums = loss_sums(c, model, [batch])
            total, divisor = total + float(sums[0]), divisor + float(sums[1])
            if c.per == "batch" or (c.per == "update" and not pending):
                units += 1
            rate = rate_of(c, epoch - 1 if c.per == "epoch" else units - 1)
            pending.append(batch)
            if len(pending) == c.window:
                update(rate)
                pending.clear()
        if c.leftover == "flush" and pending:
            update(rate)
        if c.leftover != "carry":
            pending.clear()
        if c.average and c.average[0] == "swa" and epoch >= c.average[1]:
            averaged += 1
            average = blend(average, parameters, 1 / averaged)
        values += [total / divisor if divisor else math.nan, validate(c, model, average, batches)]
    return flatten(parameters) + flatten(average or parameters), values


def step(
    c: Configuration, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list, rate: float
) -> bool:
    """Make one step of *optimizer* on *batches*; return whether any target counts."""
    groups = [batches] if c.reduction == "mean" or c.window == 1 else [[each] for each in batches]
    sums = [loss_sums(c, model, each) for each in groups]
    losses = [total / divisor for total, divisor in sums if divisor > 0]
    if not losses:
        return False
    optimizer.zero_grad()
    sum(losses).backward()
    gradients = [each.grad for each in model.parameters()]
    kind, limit = c.clipping or ("", 0.0)
    if kind == "value":
        [each.clamp_(-limit, limit) for each in gradients]
    elif kind:
        norms = [each.norm() for each in gradients]
        norms = [torch.stack(norms).norm()] * len(norms) if kind == "global_norm" else norms
        [
            each.mul_(min(1.0, limit / float(norm)) if norm else 1.0)
            for each, norm in zip(gradients, norms, strict=True)
        ]
    for group, factor in zip(optimizer.param_groups, (1.0, c.bias_rate), strict=False):
        group["lr"] = rate * factor
    optimizer.step()
    return True


def blend(average: list, parameters: list, share: float) -> list:
    """Return *average* moved by *share* towards *parameters*."""
    current = [each.detach().clone() for each in parameters]
    return [a + share * (b - a) for a, b in zip(average, current, strict=True)] if average else current


@torch.no_grad()
def validate(c: Configuration, model: nn.Module, average: list, batches: list) -> float:
    """Return the loss of *batches* with the *average* of the weights, if there is one."""
    own = [each.clone() for each in model.parameters()]
    for parameter, value in zip(model.parameters(), average or own, strict=True):
        parameter.copy_(value)
    total, divisor = loss_sums(c, model, batches)
    for parameter, value in zip(model.parameters(), own, strict=True):
        parameter.copy_(value)
    return float(total / divisor) if divisor else math.nan


def flatten(tensors: list) -> list[float]:
    """Return all numbers in *tensors*."""
    return torch.cat([each.detach().double().flatten() for each in tensors]).tolist()


def train(c: Configuration, folder: Path | str) -> tuple[list[float], list[float]]:
    """Return what `train_plainly` does, by this project."""
    from stages.learner import LearnerBuilder
    from stages.metrics import LossMetric
    from stages.optim import ClipByGlobalNorm, ClipByNorm, ClipByValue, Ema, Scheduler, Swa
    from stages.records import NamedMpkGzFileRecorder

    clippings = {
        "value": lambda limit: ClipByValue(value=limit),
        "norm": lambda limit: ClipByNorm(max_norm=limit),
        "global_norm": lambda limit: ClipByGlobalNorm(max_norm=limit),
    }
    dtype = getattr(torch, c.precision)
    for stop in (*c.stops, None):
        model, batches = build_model(c).to(dtype), make_batches(c, dtype)
        builder = LearnerBuilder(folder).metrics(LossMetric()).num_epochs(c.epochs).seed(1).devices(["cpu"])
        builder.grads_accumulation(c.window, reduction=c.reduction, leftover=c.leftover)
        builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").renderer(
            Stopping(builder.interrupter(), stop)
        )
        if c.clipping:
            builder.grad_clipping(clippings[c.clipping[0]](c.clipping[1]))
        if c.average:
            kind, value = c.average
            builder.average_weights(Ema(decay=value) if kind == "ema" else Swa(start_epoch=value))
        optimizer = build_optimizer(c, model, c.optimizer)
        learner = builder.build(model, optimizer, Scheduler(c.rate, schedule_of(c)))
        learner.fit(batches, batches)
    with learner.apply_average():
        averaged = flatten([*learner.model.parameters()])
    values = [
        learner.history.value(epoch, split, "Loss")
        for epoch in range(1, c.epochs + 1)
        for split in ("train", "valid")
    ]
    return flatten([*learner.model.parameters()]) + averaged, values


class Stopping:
    """A renderer that interrupts the run after a number of batches."""

    def __init__(self, interrupter, batches):
        self.interrupter, self.batches = interrupter, batches

    def step(self, progress):
        if self.batches is not None:
            self.batches -= 1
            if self.batches == 0:
                self.interrupter.stop()

    def start(self, *_):
        pass

    log = epoch_end = close = start


def schedule_of(c: Configuration):
    """Return the schedule of this project."""
    from stages.optim import Constant, Cosine, Exponential, Linear, Step

    common = {"per": c.per, "warmup": c.warmup}
    return {
        "constant": lambda: Constant(**common),
        "linear": lambda: Linear(final=c.rate / 10, num_iters="100 %" if c.to_the_end else 10, **common),
        "cosine": lambda: Cosine(num_iters="100 %" if c.to_the_end else 8, **common),
        "exponential": lambda: Exponential(gamma=0.9, **common),
        "step": lambda: Step(step_size=3, gamma=0.5, **common),
    }[c.schedule]()


def build_model(c: Configuration):
    """Return the model with the steps of this project, or with its own for the weights of tokens."""
    from stages.contracts.outputs import ClassificationOutput, TrainOutput
    from stages.models import ClassificationStep, backward

    class Net(ClassificationStep, nn.Sequential):
        pass

    class Tokens(nn.Sequential):
        def train_step(self, batch):
            item = self.valid_step(batch)
            return TrainOutput(self, backward(self, item.loss, item.weight), item)

        def valid_step(self, batch):
            inputs, targets, weights = batch
            logits, total = self(inputs), weights.sum()
            losses = F.cross_entropy(logits, targets, reduction="none")
            return ClassificationOutput((losses * weights).sum() / total, logits, targets, total)

    if c.token_weights:
        return Tokens(*make_layers(c))
    model = Net(*make_layers(c)).to(getattr(torch, c.precision))
    if c.class_weights or c.smoothing:
        model.configure_loss(class_weights=c.class_weights, label_smoothing=c.smoothing)
    return model


def difference(c: Configuration, found: tuple[list[float], list[float]]) -> str:
    """Return in words how *found* differs from the plain loop; an empty string if it does not."""
    messages = []
    for name, ours, theirs in zip(("weights", "losses"), found, train_plainly(c), strict=True):
        a, b = torch.tensor(ours).double(), torch.tensor(theirs).double()
        scale = max(1.0, float(b.nan_to_num().abs().max()))
        if not torch.allclose(a, b, rtol=0.0, atol=scale * TOLERANCE[c.precision], equal_nan=True):
            messages.append(f"{name} differ by {float((a - b).abs().max()):.1e}")
    return " and ".join(messages)


def train_all(seeds: list[int], folder: str, ranks: int) -> list[tuple[list[float], list[float]]]:
    """Return the results of all *seeds*, on each rank of one launch."""
    return [train(draw(seed, ranks), f"{folder}/{seed}") for seed in seeds]


def compare(seeds: list[int], folder: str, ranks: int = 1) -> list[str]:
    """Return a line for each of *seeds* whose run differs from the plain loop."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/shared")]
    torch.set_num_threads(1)
    if ranks == 1:
        results = train_all(seeds, folder, 1)
    else:
        from ranks import run_ranks

        results = run_ranks(train_all, ranks, seeds, folder, ranks)[0]
    found = [(draw(seed, ranks), result) for seed, result in zip(seeds, results, strict=True)]
    return [f"{message}: {c}" for c, result in found if (message := difference(c, result))]


def main() -> int:
    """Compare as many configurations as asked for, a quarter of them on two and three ranks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="number of configurations; default 300")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one; default 1")
    options = parser.parse_args()
    seeds = list(range(options.seed, options.seed + options.count))
    parts = {1: seeds[::4] + seeds[1::4], 2: seeds[2::4], 3: seeds[3::4]}
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks, part in parts.items():
            differences += compare(part, f"{folder}/{ranks}", ranks) if part else []
    print(*differences, f"{len(seeds)} configurations, {len(differences)} differences", sep="\n")  # noqa: T201
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
