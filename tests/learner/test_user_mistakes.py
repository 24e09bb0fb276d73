"""Mistakes in a model or its steps end with one sentence that names the class, its file and its line."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from long_tests import long
from torch import nn
from torch.utils.data import default_collate
from waiting import LIMIT_SECONDS, wait_until

import stages
from stages.contracts.errors import BuilderError, KilledError
from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.data import DataLoaderBuilder, NormalizeBatcher
from stages.learner import EvaluatorBuilder, LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep, RegressionStep, backward
from stages.optim import AdaGrad, Adam, AdamW, Lbfgs, Lion, Muon, RmsProp, Sgd
from stages.renderers import NoRenderer

PLACE = r" \(.*test_user_mistakes\.py, line \d+\)"


class Net(ClassificationStep, nn.Sequential):
    pass


class Embedded(ClassificationStep, nn.Module):
    """Looks up the inputs, at (B, 5), in a table of 10 rows."""

    def __init__(self, *, sparse=True):
        torch.manual_seed(3)
        super().__init__()
        self.table, self.linear = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.linear(self.table(inputs).mean(1))


def net(kind=Net):
    return kind(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(count=3):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(8, 4, generator=generator) for _ in range(count)]
    return [(each, each[:, :3].argmax(1)) for each in inputs]


def words(count=3):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(0, 10, (8, 5), generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


class Bare(nn.Module):
    def train_step(self, batch): ...

    def valid_step(self, batch): ...


def with_buffer(name):
    model = net()
    model.register_buffer("angles", torch.ones(2, dtype=torch.complex64), persistent=name == "persistent")
    return model


UNTRAINABLE = {
    "no parameters": (Bare, rf"Bare{PLACE} has no parameters"),
    "layers in a plain list": (lambda: Net(nn.Flatten()), rf"Net{PLACE} has no parameters.*nn.ModuleList"),
    "lazy": (lambda: Net(nn.LazyLinear(3)), rf"Net{PLACE}: the parameter 0.weight of a LazyLinear"),
    "complex": (lambda: Net(nn.Linear(4, 3, dtype=torch.cfloat)), rf"0.weight of Net{PLACE}: .*complex64"),
    "complex buffer": (lambda: with_buffer("persistent"), r"angles of Net.*view_as_real"),
    "on the meta device": (lambda: Net(nn.Linear(4, 3, device="meta")), "0.weight of Net.*meta device"),
}


@pytest.mark.parametrize(("make", "message"), UNTRAINABLE.values(), ids=UNTRAINABLE)
def test_model_that_cannot_be_trained_is_rejected_by_build(make, message, start, tmp_path):
    with pytest.raises(BuilderError, match=message):
        start(tmp_path).build(make(), Adam(), 0.1)

    assert list(tmp_path.iterdir()) == []


def test_complex_buffer_is_accepted_if_it_is_not_saved(start, tmp_path):
    start(tmp_path).build(with_buffer("not persistent"), Adam(), 0.1)
    builder = start(tmp_path)
    builder._set(recorder=None)

    builder.build(Net(nn.Linear(4, 3, dtype=torch.cfloat)), Adam(), 0.1)


@dataclass
class Item:
    loss: object
    size: object


@dataclass
class Unsized:
    loss: object


class Sized(Unsized):
    def size(self):
        return 8


def parts(model, batch):
    logits = model(batch[0])
    loss = model.loss(logits, batch[1])
    return loss, backward(model, loss), ClassificationOutput(loss, logits, batch[1])


TRAIN_STEPS = {
    "dict": (
        lambda loss, gradients, item: {"loss": loss},
        "returned a dict with the keys 'loss': return Trai",
    ),
    "loss": (lambda loss, gradients, item: loss, r"returned a tensor of shape \(\)"),
    "None": (lambda loss, gradients, item: None, "returned None: return TrainOutput"),
    "tuple": (lambda loss, gradients, item: (gradients, item), "returned a tuple"),
    "item": (lambda loss, gradients, item: item, "returned a ClassificationOutput"),
    "few": (
        lambda loss, gradients, item: (None, gradients[1:], item),
        "returned 3 gradients for 4 parameters",
    ),
    "many": (lambda loss, gradients, item: (None, [*gradients, None], item), "returned 5 gradients for 4"),
    "order": (
        lambda loss, gradients, item: (None, gradients[::-1], item),
        r"gradient of shape \(3,\) for 0.weight, which has shape \(8, 4\)",
    ),
    "iterator": (lambda loss, gradients, item: (None, iter(gradients), item), "a list_iterator as gradients"),
    "number": (
        lambda loss, gradients, item: (None, [0.0] * 4, item),
        "returned a float as gradient of 0.weight",
    ),
    "losses": (
        lambda loss, gradients, item: (None, gradients, Item(loss.expand(8), 8)),
        r"returned a loss of shape \(8,\): reduce it, for example loss.mean\(\)",
    ),
    "loss as number": (lambda loss, gradients, item: (None, gradients, Item(1.0, 8)), "a float as loss"),
    "item without loss": (
        lambda loss, gradients, item: (None, gradients, {}),
        "a dict .* without a loss as item",
    ),
    "unsized": (lambda loss, gradients, item: (None, gradients, Unsized(loss)), "an Unsized without a size"),
    "method": (
        lambda loss, gradients, item: (None, gradients, Sized(loss)),
        "size is a method: make it a @prop",
    ),
    "half": (lambda loss, gradients, item: (None, gradients, Item(loss, 0.5)), "size is 0.5"),
    "negative": (lambda loss, gradients, item: (None, gradients, Item(loss, -1)), "size is -1"),
    "failing size": (
        lambda loss, gradients, item: (None, gradients, ClassificationOutput(loss, None, [1, 2])),
        "whose size cannot be read: 'list' object has no attribute 'shape'",
    ),
}


@pytest.mark.parametrize(("returned", "message"), TRAIN_STEPS.values(), ids=TRAIN_STEPS)
def test_wrong_return_value_of_a_training_step_is_reported(returned, message, start, tmp_path):
    class Wrong(Net):
        def train_step(self, batch):
            found = returned(*parts(self, batch))
            return TrainOutput(*found) if isinstance(found, tuple) and len(found) == 3 else found

    with pytest.raises(BuilderError, match=rf"^Wrong.train_step{PLACE} .*{message}"):
        start(tmp_path).build(net(Wrong), Adam(), 0.1).fit(batches(), batches())


def test_every_evaluation_of_lbfgs_is_checked(start, tmp_path):
    class Wrong(Net):
        calls = 0

        def train_step(self, batch):
            self.calls += 1
            return super().train_step(batch) if self.calls < 2 else None

    with pytest.raises(BuilderError, match="returned None"):
        start(tmp_path).build(net(Wrong), Lbfgs(kind="lbfgs"), 0.1).fit(batches(), batches())


VALID_STEPS = {
    "loss": (lambda item: item.loss, r"returned a tensor of shape \(\)"),
    "dict": (lambda item: {"loss": item.loss}, "returned a dict with the keys 'loss'"),
    "None": (lambda item: None, "returned None"),
    "unsized": (lambda item: Unsized(item.loss), "returned an Unsized without a size"),
}


@pytest.mark.parametrize(("returned", "message"), VALID_STEPS.values(), ids=VALID_STEPS)
def test_wrong_return_value_of_a_validation_step_is_reported(returned, message, start, tmp_path):
    class Wrong(Net):
        def valid_step(self, batch):
            return returned(super().valid_step(batch))

    expected = rf"^Wrong.valid_step{PLACE} .*{message}"
    with pytest.raises(BuilderError, match=expected):
        start(tmp_path).build(net(Wrong), Adam(), 0.1).fit(batches(), batches())
    with pytest.raises(BuilderError, match=expected):
        EvaluatorBuilder(tmp_path).device("cpu").renderer(NoRenderer()).build(net(Wrong)).eval("x", batches())


LOSSES = {
    "per sample": (lambda logits: logits.sum(1), r"found shape \(8,\).*loss.mean\(\)"),
    "a number": (lambda logits: 1.0, "found the type float"),
    "detached": (lambda logits: logits.sum().detach(), "has no gradient"),
}


@pytest.mark.parametrize(("loss", "message"), LOSSES.values(), ids=LOSSES)
def test_loss_without_a_gradient_or_with_several_values_is_reported(loss, message):
    class Wrong(Net):
        def loss(self, logits, targets):
            return loss(logits)

    with pytest.raises(BuilderError, match=rf"^Wrong.loss{PLACE}: .*{message}"):
        net(Wrong).train_step(batches()[0])


def test_loss_of_shape_1_is_accepted(start, tmp_path):
    class Kept(Net):
        def loss(self, logits, targets):
            return super().loss(logits, targets).reshape(1)

    learner = start(tmp_path, 1).build(net(Kept), Adam(), 0.1)
    learner.fit(batches(), batches())

    assert learner.epoch == 1


WRONG_BATCHES = {
    "dict": ({"pixels": 1, "label": 2}, "found a dict with the keys 'pixels', 'label'"),
    "tensor": (torch.zeros(2, 4), r"found a tensor of shape \(2, 4\)"),
    "triple": ((1, 2, 3), "found a tuple of 3 elements"),
    "text": ("ab", "found a str of 2 elements"),
    "number": (3, "found the type int"),
}


@pytest.mark.parametrize("kind", [ClassificationStep, RegressionStep])
@pytest.mark.parametrize(("batch", "message"), WRONG_BATCHES.values(), ids=WRONG_BATCHES)
def test_batch_that_is_not_a_pair_is_rejected_with_the_expected_form(batch, message, kind):
    class Mixed(kind, nn.Linear):
        pass

    method = "forward_classification" if kind is ClassificationStep else "forward_regression"
    with pytest.raises(BuilderError, match=rf"Mixed.{method}{PLACE} takes .*{message}.*override {method}"):
        Mixed(4, 3).train_step(batch)


REFUSED = {
    "adam": Adam(),
    "adamw": AdamW(kind="adamw"),
    "sgd": Sgd(kind="sgd"),
    "rmsprop": RmsProp(kind="rmsprop"),
    "lion": Lion(kind="lion"),
    "muon": Muon(kind="muon"),
    "adagrad with decay": AdaGrad(kind="adagrad", weight_decay=0.1),
    "torch adam": torch.optim.Adam,
    "torch sgd with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}
ACCEPTED = {
    "adagrad": AdaGrad(kind="adagrad"),
    "lbfgs": Lbfgs(kind="lbfgs"),
    "torch sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


def train_on_words(optimizer, directory, start, *, sparse=True):
    model = Embedded(sparse=sparse)
    made = optimizer(model.parameters()) if callable(optimizer) else optimizer
    start(directory, 2).build(model, made).fit(words(), words())
    return model.state_dict()


@pytest.mark.parametrize("optimizer", REFUSED.values(), ids=REFUSED)
def test_optimizer_without_sparse_support_fails_at_the_first_step(optimizer, start, tmp_path):
    with pytest.raises(BuilderError, match=r"gradient of table.weight is sparse, which .*sparse=False"):
        train_on_words(optimizer, tmp_path, start)

    assert not list(tmp_path.glob("checkpoint/trainer-*"))


@pytest.mark.parametrize("optimizer", ACCEPTED.values(), ids=ACCEPTED)
def test_sparse_gradients_train_as_dense_ones_do(optimizer, start, tmp_path):
    sparse = train_on_words(optimizer, tmp_path / "sparse", start)

    dense = train_on_words(optimizer, tmp_path / "dense", start, sparse=False)

    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-5)


def joined(items):
    inputs, targets = zip(*items, strict=True)
    return torch.stack(inputs), torch.stack(targets)


FUNCTIONS = {"own": joined, "of torch": default_collate, "lambda": joined}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("workers", [0, 1])
def test_function_can_be_a_batcher(function, workers, tiny):
    dataset = tiny[1]()[0].dataset

    def load(batcher):
        return list(DataLoaderBuilder(batcher).batch_size(8).num_workers(workers).build(dataset))

    for (inputs, targets), expected in zip(load(function), load(NormalizeBatcher()), strict=True):
        assert torch.equal(inputs, expected.inputs)
        assert torch.equal(targets, expected.targets)


@pytest.mark.parametrize(
    ("batcher", "message"),
    [
        (NormalizeBatcher, r"such as NormalizeBatcher\(…\); found the class NormalizeBatcher"),
        (3, "found the type int"),
    ],
)
def test_invalid_batcher_is_rejected(batcher, message):
    with pytest.raises(BuilderError, match=message):
        DataLoaderBuilder(batcher)


def test_absurd_numbers_of_workers_are_limited_with_a_warning(tiny, caplog):
    dataset = tiny[1]()[0].dataset

    loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(8).num_workers(100_000).build(dataset)

    assert loader.workers < 100_000
    assert "num_workers is 100000" in caplog.text
    assert len(list(loader)) == len(loader)


class Killing(NoRenderer):
    def step(self, progress):
        if (progress.epoch, progress.batch) == (2, 1):
            raise KilledError


def test_run_killed_by_a_key_keeps_its_checkpoint_and_exits_with_130(start, tmp_path):
    learner = start(tmp_path).renderer(Killing()).build(net(), Adam(), 0.1)

    with pytest.raises(SystemExit) as ended:
        learner.fit(batches(), batches())

    assert ended.value.code == 130
    assert (tmp_path / "checkpoint/trainer-1.mpk.gz").exists()
    assert "PANIC => KilledError: killed by the key k" in (tmp_path / "experiment.log").read_text()


LOADING = """
import sys, time, torch
from pathlib import Path
from torch import nn
from stages.data import DataLoaderBuilder, NormalizeBatcher
from stages.learner import LearnerBuilder
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.renderers import NoRenderer

class Net(ClassificationStep, nn.Sequential):
    def train_step(self, batch):
        Path("training").touch()
        return super().train_step(batch)

class Slow:
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(4), torch.tensor(index % 3)

def own():
    return DataLoaderBuilder(NormalizeBatcher()).batch_size(8).num_workers(2).build(Slow())

def torchs():
    return torch.utils.data.DataLoader(Slow(), 8, num_workers=2)

make = own if sys.argv[1] == "own" else torchs
builder = LearnerBuilder(sys.argv[2]).devices(["cpu"]).renderer(NoRenderer())
builder.build(Net(nn.Linear(4, 3)), Adam()).fit(make(), make())
"""


@pytest.mark.parametrize("loader", ["own", long("torch")])
def test_ctrl_c_ends_a_run_with_workers_with_one_traceback(loader, tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", LOADING, loader, tmp_path],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(stages.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((tmp_path / "training").exists, process=run)  # all workers have started by then

    os.killpg(run.pid, signal.SIGINT)
    printed = run.communicate(timeout=LIMIT_SECONDS)[1]

    assert run.returncode == -signal.SIGINT
    of_sharer = printed.count("in _serve\n")  # multiprocessing reports a connection that the interrupt closed
    assert printed.count("Traceback") - of_sharer == 1, printed
    assert printed.rstrip().endswith("KeyboardInterrupt")


class Weighted(Net):
    """Its outputs have the sum of the weights of the samples as weight."""

    weight = 1.0

    def forward_classification(self, batch):
        item = super().forward_classification(batch)
        return ClassificationOutput(item.loss, item.output, item.targets, weight=self.weight)


@pytest.mark.parametrize("weight", [-0.5, float("inf"), float("nan"), torch.tensor(-7)])
def test_weight_that_is_not_a_divisor_is_rejected(weight, start, tmp_path):
    model = net(Weighted)
    model.weight = weight
    learner = start(tmp_path).build(model, Adam(), 0.1)

    with pytest.raises(BuilderError, match=r"weight of a ClassificationOutput .* found (-0\.5|inf|nan|-7)"):
        learner.fit(batches(), batches())


@pytest.mark.parametrize("weight", [3, 3.0, 0.25, torch.tensor(7.5), np.float32(0.5)])
def test_weight_may_be_any_number_above_0(weight, start, tmp_path):
    model = net(Weighted)
    model.weight = weight
    learner = start(tmp_path, 1).build(model, Adam(), 0.1)

    learner.fit(batches(), batches())

    assert learner.epoch == 1


class Answer:
    """A rule, a schedule and a metric of a user, whose methods return one answer."""

    name, unit = "Own", None

    def __init__(self, answer):
        self.answer = answer

    def reason(self, history):
        return self.answer

    def keep(self, saved, history):
        return self.answer

    def step(self):
        return self.answer

    def measure(self, output):
        return self.answer

    def end_epoch(self, metric=None):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("change", "answer", "words"),
    [
        (LearnerBuilder.early_stopping, False, r"reason \(.*\) returned False: return a text"),
        (LearnerBuilder.early_stopping, True, r"reason \(.*\) returned True: return a text"),
        (LearnerBuilder.with_checkpointing_strategy, None, r"keep \(.*\) returned None: return the set"),
        (LearnerBuilder.metrics, 0.5, r"metric 'Own': Answer.measure \(.*\) returned float: return a Mean"),
        (
            LearnerBuilder.metrics,
            None,
            r"metric 'Own': Answer.measure \(.*\) returned NoneType: return a Mean",
        ),
    ],
)
def test_wrong_answer_of_a_rule_or_a_metric_is_one_message(change, answer, words, start, tmp_path):
    builder = start(tmp_path, 3)
    change(builder, Answer(answer))

    with pytest.raises(BuilderError, match=words):
        builder.build(net(), Adam(), 0.1).fit(batches(), batches())


@pytest.mark.parametrize("rate", [None, "0.1", -0.1, float("nan"), float("inf")])
def test_invalid_rate_of_a_schedule_is_refused_before_it_reaches_the_weights(rate, start, tmp_path):
    model = net()
    before = [parameter.clone() for parameter in model.parameters()]

    with pytest.raises(BuilderError, match=r"Answer.step \(.*\) returned the learning rate .* from 0"):
        start(tmp_path, 1).build(model, Adam(), Answer(rate)).fit(batches(), batches())

    assert all(map(torch.equal, before, model.parameters()))


def test_rule_may_return_a_list_of_epochs(start, tmp_path):
    class Newest:
        def keep(self, saved, history):
            return saved[-1:]

    builder = start(tmp_path, 3).with_checkpointing_strategy(Newest())
    builder.build(net(), Adam(), 0.1).fit(batches(), batches())

    assert [path.name for path in (tmp_path / "checkpoint").glob("model-*")] == ["model-3.mpk.gz"]


class Renamed(LossMetric):
    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize("builder", [LearnerBuilder, EvaluatorBuilder])
def test_metric_without_a_method_that_measures_is_refused(builder, tmp_path):
    metric = type("Own", (), {"name": "Own"})()

    with pytest.raises(
        BuilderError, match=r"metric 'Own': Own.* has no method measure. Define measure\(outp"
    ):
        builder(tmp_path).metrics(metric)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["Loss/Valid"], "a metric is named 'Loss/Valid', which cannot be the name of a file"),
        (["A b", "A_b"], "metrics 'A b' and 'A_b' would share the file A_b.log: rename one of them"),
        (["x" * 300], "which has 300 bytes: use a name of at most 200"),
    ],
)
def test_names_of_metrics_that_are_no_files_are_refused_before_training(names, words, tmp_path):
    model = torch.nn.Linear(1, 1)
    model.train_step = model.valid_step = lambda batch: None
    builder = LearnerBuilder(tmp_path).metrics(*map(Renamed, names))

    with pytest.raises(BuilderError, match=words):
        builder.build(model, torch.optim.SGD(model.parameters()), 0.1)
