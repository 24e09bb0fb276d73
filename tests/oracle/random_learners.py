"""Random runs of the library, and what must hold for each of them.

    python tests/oracle/random_learners.py --count 300 --seed 1

Loaders, models, optimizers, schedules, metrics, hooks and options are drawn together. A run that is stopped
or ended by an exception some times, and continued from its newest checkpoint by new objects, has the weights,
the state of the optimizer, the values and the files of one that is not; and a run with other loggers,
checkpoints and other options that change no number has the same numbers. All of a seed is a function of it,
and no number may depend on the state of the global generators at the start. `make long` tries some.
"""

import random
import sys
from itertools import count

import numpy as np
import torch
from seeds import find_changes, read_seeds, try_seeds
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, WeightedRandomSampler
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset as TorchDataset

from stages import data
from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.learner import FrozenNorms, Hook, LearnerBuilder, Unfreeze
from stages.loggers import JsonLinesMetricLogger, TsvMetricLogger
from stages.metrics import (
    AccuracyMetric,
    AurocMetric,
    FBetaScoreMetric,
    LearningRateMetric,
    LossMetric,
    PerplexityMetric,
    ScalarMetric,
)
from stages.models import ClassificationStep
from stages.optim import (
    AdaGrad,
    Adam,
    AdamW,
    Adan,
    ClipByGlobalNorm,
    ClipByNorm,
    Cosine,
    Ema,
    Exponential,
    GroupedOptimizer,
    Lbfgs,
    Linear,
    Lion,
    Muon,
    NonFinite,
    ParameterGroup,
    Scheduler,
    Sgd,
    Step,
    Swa,
)
from stages.records import encode_state
from stages.records.recorder import RECORDERS
from stages.renderers import NoRenderer
from stages.runs import KeepLast

CLASSES = 3
FULL_PRECISION = [name for name in RECORDERS if name not in ("compact", "pretty_json")]
NUMBERS = ("weights", "average", "optimizer", "scheduler", "history", "model")
LOADERS = (
    *("own", "own", "list", "torch", "shuffled", "noisy", "sampler", "workers", "generator", "weighted"),
    *("stream", "user", "user with set_epoch"),
)
WITHOUT_LENGTH = ("stream", "user", "user with set_epoch")
OPTIMIZERS = {
    "adam": lambda _: Adam(),
    "adamw": lambda _: AdamW(weight_decay=0.1),
    "sgd": lambda _: Sgd(momentum=0.9),
    "adagrad": lambda _: AdaGrad(),
    "adan": lambda _: Adan(),
    "lion": lambda _: Lion(),
    "muon": lambda _: Muon(),
    "lbfgs": lambda _: Lbfgs(max_iter=2),
    "groups": lambda _: GroupedOptimizer(
        AdamW(weight_decay=0.1), (ParameterGroup(match="bias$", weight_decay=0.0, learning_rate=0.003),)
    ),
    "scheduled groups": lambda _: GroupedOptimizer(
        Sgd(momentum=0.9),
        (ParameterGroup(match="bias$", schedule=Linear(final=0.001, num_iters=4, per="update")),),
    ),
    "two optimizers": lambda _: GroupedOptimizer(Muon(), (ParameterGroup(match="bias$", optimizer=Adam()),)),
    "torch's adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "torch's fused adam": lambda parameters: torch.optim.Adam(parameters, 0.01, fused=True),
    "torch's amsgrad": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "torch's nadam": lambda parameters: torch.optim.NAdam(parameters, 0.01),
    "torch's rprop": lambda parameters: torch.optim.Rprop(parameters, 0.01),
    "torch's groups": lambda parameters: torch.optim.SGD(
        [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.03}], 0.01, momentum=0.5
    ),
}
SCHEDULES = {
    "rate": lambda _: 0.01,
    "cosine": lambda _: Scheduler(0.01, Cosine(num_iters=5)),
    "linear": lambda _: Scheduler(0.01, Linear(final=0.001, num_iters=4, per="update")),
    "to the end": lambda _: Scheduler(0.01, Linear(final=0.001, num_iters="100 %")),
    "exponential": lambda _: Scheduler(0.01, Exponential(gamma=0.9, warmup=2)),
    "step": lambda _: Scheduler(0.01, Step(step_size=1, gamma=0.5, per="epoch")),
}
SCHEDULES_OF_TORCH = {
    "none": lambda _: None,
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.8)],
        [2],
    ),
}
PLATEAU = {"plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)}
NEUTRAL = {"fast path": "auto", "sanity": 0, "logger": None, "every": None, "keeps": None}
"""The options that change no number, and a value of each."""
STARTS = count(1)
"""Other states of the global generators for each run."""


class CrashError(Exception):
    """Ends a run in the middle of a step, as an error in the code of a user does."""


class Stopping(NoRenderer):
    """A renderer that ends the run after a number of steps of both splits."""

    def __init__(self, interrupter, steps, crashes):
        super().__init__()
        self.interrupter, self.steps, self.crashes = interrupter, steps, crashes

    def step(self, progress):
        self.steps -= 1
        if self.steps == 0 and self.crashes:
            raise CrashError
        if self.steps == 0:
            self.interrupter.stop()


class Stream(IterableDataset):
    """Batches that continue over the epochs, with a position in the samples and in the epoch."""

    def __init__(self, inputs, targets, size):
        self.inputs, self.targets, self.size = inputs, targets, size
        self.row = self.batch = self.first = self.epoch = 0

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.first = self.batch = 0
        self.epoch = epoch

    def __iter__(self):
        first, self.first = self.first, 0
        for number in range(first, len(self.targets) // self.size):
            self.batch = number + 1
            rows = (self.row + torch.arange(self.size)) % len(self.targets)
            self.row += self.size + 1
            yield self.inputs[rows], self.targets[rows]

    def state_dict(self):
        return {"row": self.row, "batch": self.batch, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.row, self.batch, self.epoch = state["row"], state["batch"], state["epoch"]
        self.first = self.batch


class Noisy(torch.utils.data.Dataset):
    """A dataset that draws from all global generators."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        noise = torch.randn(()) + float(np.random.normal()) + random.random()  # noqa: S311
        return self.inputs[index] + 0.1 * noise, self.targets[index]


class UserLoader:
    """A shuffling loader without a length, and without or with a method `set_epoch`."""

    def __init__(self, inputs, targets, size, *, has_epochs):
        self.inputs, self.targets, self.size, self.generator = inputs, targets, size, None
        if has_epochs:
            self.set_epoch = self.seed

    def seed(self, epoch):
        self.generator = torch.Generator().manual_seed(epoch)

    def __iter__(self):
        for rows in torch.randperm(len(self.targets), generator=self.generator).split(self.size):
            yield self.inputs[rows], self.targets[rows]


class Drawing(Hook):
    """A hook with a state, which changes the weights and draws random numbers."""

    def __init__(self):
        self.calls = 0

    def after_step(self, context):
        self.calls += 1
        with torch.no_grad():
            for parameter in context.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.001 / self.calls)

    def before_epoch(self, context):
        if not context.step:
            self.calls += int(torch.randint(3, ()))

    before_validation = before_epoch

    def after_epoch(self, context):
        self.calls += context.epoch

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict["calls"]


class PairNorm(nn.BatchNorm1d):
    """A batch norm that accepts one sample."""

    def forward(self, inputs):
        return super().forward(inputs.repeat(2, 1))[: len(inputs)]


class Net(ClassificationStep, nn.Module):
    """A model with a layer of *kind*, and a state of its own; it may log numbers and texts."""

    def __init__(self, kind, dropout, *, logs):
        super().__init__()
        norm = {"batch norm": PairNorm(5), "layer norm": nn.LayerNorm(5)}.get(kind, nn.Identity())
        first = nn.Linear(4, 5)
        if kind == "spectral norm":
            first = nn.utils.parametrizations.spectral_norm(first)
        self.layers = nn.Sequential(first, norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, CLASSES))
        self.logs, self.seen = logs, 0

    def forward(self, inputs):
        self.seen += self.training
        return self.layers(inputs)

    def train_step(self, batch):
        if self.logs:
            inputs, targets = batch
            if int(targets.sum()) % 2:
                self.log("sometimes", targets.float().mean())
            self.log("norm", inputs.norm(), weight=2)
            self.log_text("seen", f"{self.seen}")
        return super().train_step(batch)

    def training_state(self):
        return {"seen": self.seen}

    def load_training_state(self, state):
        self.seen = state["seen"]


class SelfUpdating(Net):
    """A model with a method `optimize`."""

    def optimize(self, optimizer, gradients, learning_rate):
        for parameter, gradient in zip(self.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * 0.5
        optimizer.step()
        optimizer.zero_grad()


class Own(nn.Module):
    """A model with steps of its own and a buffer, whose loss is NaN for some batches."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, CLASSES), 0
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        return self.layer(inputs)

    def train_step(self, batch):
        self.count += 1
        item = self.valid_step(batch)
        (item.loss * float("nan") if int(batch[1].sum()) % 7 == 3 else item.loss).backward()
        return TrainOutput(self, [parameter.grad for parameter in self.parameters()], item)

    def valid_step(self, batch):
        logits = self(batch[0])
        return ClassificationOutput(nn.functional.cross_entropy(logits, batch[1]), logits, batch[1])


class Draws:
    """The options of a seed, drawn one after the other; *fixed* has the values of some of them."""

    def __init__(self, seed, fixed):
        self.random, self.drawn, self.fixed = random.Random(seed), {}, fixed  # noqa: S311

    def choose(self, name, *options):
        """Return one of *options*, of which a repeated one is more likely, as the option *name*."""
        option = self.random.choice(options)
        self.drawn[name] = self.fixed.get(name, option)
        return self.drawn[name]


def build_loader(draws, split, inputs, targets, seed):
    """Return a random loader for *split*, and its kind."""
    size, kind = draws.random.choice([2, 3, 5]), draws.choose(f"{split} loader", *LOADERS)
    pairs, noisy = TorchDataset(inputs, targets), Noisy(inputs, targets)
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(pairs, num_samples=len(pairs) + 2, replacement=True)
    build = {
        "own": lambda: build_own_loader(draws, split, inputs, targets, size, seed),
        "list": lambda: [*zip(inputs.split(size), targets.split(size), strict=True)],
        "torch": lambda: TorchLoader(pairs, size, drop_last=True),
        "shuffled": lambda: TorchLoader(pairs, size, shuffle=True),
        "noisy": lambda: TorchLoader(noisy, size, shuffle=True),
        "workers": lambda: TorchLoader(noisy, size, shuffle=True, num_workers=1, persistent_workers=seed % 2),
        "sampler": lambda: TorchLoader(pairs, batch_sampler=BatchSampler(sampler, size, drop_last=False)),
        "generator": lambda: TorchLoader(pairs, size, shuffle=True, generator=generator),
        "weighted": lambda: TorchLoader(
            pairs, size, sampler=WeightedRandomSampler([1.0 + n for n in range(len(pairs))], len(pairs))
        ),
        "stream": lambda: TorchLoader(Stream(inputs, targets, size), None),
        "user": lambda: UserLoader(inputs, targets, size, has_epochs=False),
        "user with set_epoch": lambda: UserLoader(inputs, targets, size, has_epochs=True),
    }
    return build[kind](), kind


def add_noise(sample):
    """Return *sample* with the same random number in each place."""
    return sample + torch.rand(())


def build_own_loader(draws, split, inputs, targets, size, seed):
    """Return a loader of this project."""
    builder = data.DataLoaderBuilder(data.NormalizeBatcher(0.1, 2.0)).batch_size(size)
    if draws.random.random() < 0.7:
        builder.shuffle(seed)
    if draws.random.random() < 0.3:
        builder.limit_batches(3)
    if draws.choose(f"{split} noise", False, False, True):
        builder.augment([add_noise])
    builder.num_workers(draws.random.choice([0, 0, 1]))
    return builder.build(data.TensorDataset(inputs, targets))


def build_model(draws, optimizer):
    """Return a random model that *optimizer* can train."""
    kind = draws.choose("model", "plain", "batch norm", "layer norm", "spectral norm", "own", "self-updating")
    dropout, logs = draws.choose("dropout", 0.0, 0.3), draws.choose("logs", False, False, True)
    if kind == "own" and optimizer != "lbfgs":
        return Own()
    if kind == "self-updating" and optimizer in ("adam", "adan", "lion", "torch's nadam", "torch's rprop"):
        return SelfUpdating(kind, dropout, logs=logs)
    return Net(kind, dropout, logs=logs)


def set_metrics(draws, builder, model):
    """Register random metrics."""
    others = AccuracyMetric, PerplexityMetric, FBetaScoreMetric
    builder.metrics(LossMetric(), draws.choose("metric", *others)())
    if draws.choose("area", False, True):
        builder.metrics_text(AurocMetric())
    if draws.choose("learning rate", False, True):
        builder.metrics(LearningRateMetric())
    if draws.choose("scalar", False, True) and getattr(model, "logs", False):
        builder.metric_train_numeric(ScalarMetric("loss", name="norm"))


def set_training(draws, builder, model, optimizer):
    """Set random options that change the numbers."""
    window = draws.choose("window", 1, 1, 2, 3)
    reduction, leftover = (
        draws.choose("reduction", "mean", "sum"),
        draws.choose("rest", "flush", "drop", "carry"),
    )
    clipping = draws.choose("clipping", None, None, ClipByNorm(max_norm=0.1), ClipByGlobalNorm(max_norm=0.1))
    precision = draws.choose("precision", "f32", "f32", "f32", "bf16", "fp16")
    if optimizer != "lbfgs":
        builder.grads_accumulation(window, reduction=reduction, leftover=leftover)
        builder.precision("bf16" if precision == "fp16" and isinstance(model, Own) else precision)
        if clipping is not None:
            builder.grad_clipping(clipping)
    if average := draws.choose("average", None, None, Ema(decay=0.7), Swa(start_epoch=2)):
        builder.average_weights(average)
    if draws.choose("skips", False, True) or isinstance(model, Own):
        builder.non_finite(NonFinite(kind="skip", limit=50))
    if draws.choose("recomputes", False, False, False, True) and not isinstance(model, Own):
        builder.gradient_checkpointing()
    limits = draws.choose("limits", None, None, (2, None), (2, 1))
    if limits:
        builder.limit_batches(*limits)


def set_hooks(draws, builder, model):
    """Add random hooks."""
    if draws.choose("drawing", False, False, True):
        builder.hooks(Drawing())
    unfreezes = draws.choose("unfreezes", False, False, False, True)
    if unfreezes and isinstance(model, Net):
        builder.hooks(Unfreeze([r"^layers\.4\."], epoch=2))
    has_norm = any(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    if draws.choose("frozen norms", False, False, True) and has_norm:
        builder.hooks(FrozenNorms())


def set_files(draws, builder, folder):
    """Set random options of what the run writes; none but the recorder changes a number."""
    recorder = draws.choose("recorder", *FULL_PRECISION)  # burnpack follows Burn 0.22
    builder.with_file_checkpointer(RECORDERS[recorder]()).checkpoint("auto").with_application_logger(None)
    loggers = {"tsv": TsvMetricLogger, "jsonl": JsonLinesMetricLogger}
    if logger := draws.choose("logger", None, *loggers):
        folder.mkdir(parents=True, exist_ok=True)
        builder.add_metric_loggers(*(loggers[logger](folder / f"{split}.{logger}") for split in "tv"))
    builder.checkpoint_every(steps=draws.choose("every", None, 1, 2, 4))
    if keeps := draws.choose("keeps", None, KeepLast(1)):
        builder.with_checkpointing_strategy(keeps)


def train(seed, folder, stop=None, *, most_epochs=3, fixed=None):
    """Run or continue the run of *seed* in *folder*; return its learner, None if it stopped, and its draws.

    *stop* is the number of steps until its end, and whether that is an exception. *fixed* replaces draws.
    """
    draws = Draws(seed, fixed or {})
    torch.manual_seed(seed)
    samples, epochs = draws.choose("samples", 7, 12), min(draws.choose("epochs", 2, 3), most_epochs)
    inputs, targets = torch.randn(samples, 4), torch.randint(CLASSES, (samples,))
    name = draws.choose("optimizer", *OPTIMIZERS)
    model = build_model(draws, name)
    train, kind = build_loader(draws, "train", inputs, targets, seed)
    valid, _ = build_loader(draws, "valid", inputs[:5], targets[:5], seed + 1)
    if draws.choose("validation", True, True, True, True, False) is False:
        valid = None
    builder = LearnerBuilder(folder).num_epochs(epochs).devices(["cpu"]).seed(seed)
    set_metrics(draws, builder, model)
    set_training(draws, builder, model, name)
    set_hooks(draws, builder, model)
    set_files(draws, builder, folder)
    rare, sanity = draws.choose("rare", 1, 1, 2), draws.choose("sanity", 0, 0, 1)
    if valid is not None:
        builder.validate_every(rare).sanity_check(sanity)
    builder.fast_path(draws.choose("fast path", "auto", "auto", "off"))
    schedules = SCHEDULES | (SCHEDULES_OF_TORCH if name.startswith("torch") else {})
    schedules |= PLATEAU if name.startswith("torch") and valid is not None else {}
    schedule = draws.choose("schedule", *schedules)
    builder.strategy(draws.choose("strategy", "auto"))
    optimizer = OPTIMIZERS[name]([*model.parameters()])
    rate = schedules["rate" if schedule == "to the end" and kind in WITHOUT_LENGTH else schedule](optimizer)
    stopping = Stopping(builder.interrupter(), *stop) if stop else NoRenderer()
    for seed_generator in (torch.manual_seed, np.random.seed, random.seed):
        seed_generator(next(STARTS))
    learner = builder.renderer(stopping).build(model, optimizer, rate)
    try:
        learner.fit(train, valid)
    except CrashError:
        return None, draws.drawn
    is_complete = learner.epoch == epochs or not learner.interrupted
    return learner if is_complete else None, draws.drawn


def run(seed, folder, *arguments, **options):
    """Do what `train` does, and return the results in place of the learner."""
    learner, drawn = train(seed, folder, *arguments, **options)
    return learner and read_results(learner, folder), drawn


def read_results(learner, folder):
    """Return the numbers and the files of a run, by name."""
    state = learner.components.state.model
    optimizer = state.optimizer.state_dict()
    hooks = [hook.calls for hook in learner.components.options.hooks if isinstance(hook, Drawing)]
    results = {
        "weights": read_bits(learner.model.state_dict()),
        "optimizer": (
            read_bits({number: optimizer["state"][number] for number in sorted(optimizer["state"])}),
            read_bits(optimizer["param_groups"]),
        ),
        "scheduler": read_bits(state.scheduler.state_dict()),
        "history": repr([*learner.history]),
        "model": (learner.model.seen, hooks),
    }
    with learner.apply_average():
        results["average"] = read_bits(learner.model.state_dict())
    files = [path for path in folder.rglob("*") if path.is_file()]
    return results | {str(path.relative_to(folder)): path.read_bytes() for path in files}


def read_bits(state):
    """Return *state* as text and bytes, which are equal only if all bits are."""

    def read(node):
        if isinstance(node, torch.Tensor):
            return str(node.dtype), [*node.shape], node.detach().contiguous().view(-1).numpy().tobytes()
        if isinstance(node, dict):
            return {key: read(part) for key, part in node.items()}
        return [read(part) for part in node] if isinstance(node, list) else repr(node)

    return read(encode_state(state, "the state"))


def run_in_parts(seed, folder, drawn):
    """Return the results of the run of *seed*, which is stopped up to three times, and the stops.

    It may begin as a run of one epoch, unless its schedule depends on the number of epochs.
    """
    r, stops = random.Random(-seed), []  # noqa: S311
    if r.random() < 0.3 and drawn["schedule"] != "to the end":
        stops.append("one epoch")
        run(seed, folder, most_epochs=1)
    for _ in range(r.choice([1, 2, 3])):
        stops.append((r.randint(1, 12), r.random() < 0.4))
        results, _ = run(seed, folder, stops[-1])
        if results is not None:
            return results, stops
    return run(seed, folder)[0], stops


def try_learner(seed, folder):
    """Return what is wrong with the run of *seed*, in *folder*, if anything."""
    torch.set_num_threads(1)
    whole, drawn = run(seed, folder / "whole")
    parts, stops = run_in_parts(seed, folder / "parts", drawn)
    other, _ = run(seed, folder / "other", fixed=NEUTRAL)
    problems = [f"{name} differs after the stops {stops}" for name in find_changes(whole, parts)]
    problems += [f"{name} depends on {', '.join(NEUTRAL)}" for name in NUMBERS if whole[name] != other[name]]
    return [*problems, drawn] if problems else []


if __name__ == "__main__":
    sys.exit(try_seeds(read_seeds(__doc__, 100), "runs", try_learner))
