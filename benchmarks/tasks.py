"""Ten tasks with a `LearnerBuilder`, and the table of the lines of each beside those with Lightning.

A task trains two epochs, measures loss and quality of both splits, writes checkpoints, and resumes from the
newest. `python benchmarks/tasks.py` prints the table: the lines of each function here and in
`tasks_lightning.py`, without its definition and docstring. The data, the networks (`task_data.py`), and what
tasks share, above the first of them, are not counted.
"""

import ast
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from task_data import (
    AdaptedClassifier,
    Classifier,
    Detector,
    Encoder,
    Gan,
    Gpt,
    Pixels,
    TwoHeads,
    boxes,
    characters,
    classes,
    digits,
    masks,
    points,
    two_targets,
    views,
)
from torch import nn
from torch.utils.data import DataLoader, Subset

from stages.contracts.outputs import ClassificationOutput, DetectionOutput, RegressionOutput, TrainOutput
from stages.learner import LearnerBuilder, Unfreeze
from stages.metrics import (
    AccuracyMetric,
    LossMetric,
    MeanAveragePrecisionMetric,
    PerplexityMetric,
    ScalarMetric,
)
from stages.metrics.from_torchmetrics import mean_iou
from stages.models import ClassificationStep, LoggingStep, backward
from stages.optim import Adam, GroupedOptimizer
from stages.records import DefaultRecorder


def start(folder: Path, *metrics: Any) -> LearnerBuilder:
    """Return a builder with the options of all tasks."""
    builder = LearnerBuilder(folder).num_epochs(2).with_file_checkpointer(DefaultRecorder())
    return builder.checkpoint("auto").metrics(LossMetric(), *metrics)


class OneStep(LoggingStep):
    """The training step of most tasks whose loss is that of the valid step."""

    def train_step(self, batch: Any) -> Any:
        """Return the gradients of the loss."""
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)


def segmentation(folder: Path) -> Any:
    """Train a class for each pixel; measure the mean IoU."""

    class Net(ClassificationStep, Pixels):
        pass

    return start(folder, mean_iou(2)).build(Net(), Adam(), 1e-2).fit(*masks())


def detection(folder: Path) -> Any:
    """Train boxes; measure the mean average precision."""

    class Net(OneStep, Detector):
        def valid_step(self, batch: Any) -> Any:
            loss, predictions = self(*batch)
            return DetectionOutput(loss, predictions, batch[1])

    return start(folder, MeanAveragePrecisionMetric()).build(Net(), Adam(), 1e-2).fit(*boxes())


def language_model(folder: Path) -> Any:
    """Train the next token at each position; measure the perplexity."""

    class Net(ClassificationStep, Gpt):
        pass

    return start(folder, PerplexityMetric()).build(Net(), Adam(), 1e-2).fit(*characters())


def contrastive(folder: Path) -> Any:
    """Train features of two views without classes; measure how often the views find each other."""

    class Net(OneStep, Encoder):
        def valid_step(self, batch: Any) -> Any:
            first, second = (F.normalize(self(view), dim=1) for view in batch)
            logits, partners = first @ second.T / 0.2, torch.arange(len(first))
            return ClassificationOutput(F.cross_entropy(logits, partners), logits, partners)

    return start(folder, AccuracyMetric()).build(Net(), Adam(), 1e-2).fit(*views())


def adversarial(folder: Path) -> Any:
    """Train a generator and a critic; measure the loss of each."""

    class Net(LoggingStep, Gan):
        def valid_step(self, batch: Any) -> Any:
            generator, critic = self.losses(batch)
            self.log("critic", critic)
            return RegressionOutput(generator, batch, batch)

        def train_step(self, batch: Any) -> Any:
            generator, critic = self.losses(batch)
            self.log("critic", critic)
            gradients = [
                *torch.autograd.grad(generator, [*self.generator.parameters()]),
                *torch.autograd.grad(critic, [*self.critic.parameters()]),
            ]
            return TrainOutput(self, gradients, RegressionOutput(generator, batch, batch))

    return start(folder).build(Net(), Adam(), 1e-3).fit(*points())


def multi_task(folder: Path) -> Any:
    """Train two heads; measure the accuracy of one and the loss of the other."""

    class Net(OneStep, TwoHeads):
        def valid_step(self, batch: Any) -> Any:
            logits, kind, size = self.losses(*batch)
            self.log("size", size)
            return ClassificationOutput(kind + size, logits, batch[1]["kind"])

    return (
        start(folder, AccuracyMetric(), ScalarMetric("size")).build(Net(), Adam(), 1e-2).fit(*two_targets())
    )


def lora(folder: Path) -> Any:
    """Train the adapters of a classifier only."""

    class Net(ClassificationStep, AdaptedClassifier):
        pass

    optimizer = GroupedOptimizer(Adam(), freeze=(r"weight$", r"bias$"))
    return start(folder, AccuracyMetric()).build(Net(), optimizer, 1e-2).fit(*classes())


def folds(folder: Path) -> Any:
    """Train a classifier on each of three divisions of the data; return the mean accuracy."""

    class Net(ClassificationStep, Classifier):
        pass

    values, samples = [], digits()
    for fold in range(3):
        parts = [[i for i in range(len(samples)) if (i % 3 == fold) is valid] for valid in (False, True)]
        train, valid = (DataLoader(Subset(samples, part), 8) for part in parts)
        learner = start(folder / f"fold-{fold}", AccuracyMetric()).build(Net(), Adam(), 1e-2)
        learner.fit(train, valid)
        values.append(learner.history.value(2, "valid", "Accuracy"))
    return sum(values) / len(values)


def autoencoder(folder: Path) -> Any:
    """Train the images themselves as targets."""

    class Net(OneStep, Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.append(nn.Linear(16, 64))

        def valid_step(self, batch: Any) -> Any:
            images, outputs = batch[0].flatten(1), self(batch[0])
            return RegressionOutput(F.mse_loss(outputs, images), outputs, images)

    return start(folder).build(Net(), Adam(), 1e-2).fit(*classes())


def fine_tuning(folder: Path) -> Any:
    """Train the head, and from epoch 2 the encoder too."""

    class Net(ClassificationStep, Classifier):
        pass

    builder = start(folder, AccuracyMetric()).hooks(Unfreeze(r"^0\.", epoch=2))
    return builder.build(Net(), Adam(), 1e-2).fit(*classes())


TASKS = (
    segmentation,
    detection,
    language_model,
    contrastive,
    adversarial,
    multi_task,
    lora,
    folds,
    autoencoder,
    fine_tuning,
)


def count_lines(file: Path) -> dict[str, int]:
    """Return the lines of each function in *file* by its name, without definition and docstring."""
    text = file.read_text()
    lines = text.splitlines()
    counts = {}
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef):
            body = lines[function.body[1].lineno - 1 : function.end_lineno]
            counts[function.name] = sum(bool(line.strip()) for line in body)
    return counts


def table() -> str:
    """Return the table of the lines of each task."""
    folder = Path(__file__).parent
    ours, others = (count_lines(folder / name) for name in ("tasks.py", "tasks_lightning.py"))
    names = [task.__name__ for task in TASKS]
    rows = [f"| {name.replace('_', ' ')} | {ours[name]} | {others[name]} |" for name in names]
    total = [sum(counts[name] for name in names) for counts in (ours, others)]
    return "\n".join([*rows, f"| all | {total[0]} | {total[1]} |"])


if __name__ == "__main__":
    print(table())
