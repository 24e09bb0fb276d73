"""The ten tasks of `tasks.py` with Lightning and torchmetrics."""

from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import BaseFinetuning
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
from torchmetrics import Accuracy, JaccardIndex
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.text import Perplexity


def fit(folder: Path, module: Any, loaders: Any, *callbacks: Any) -> Any:
    """Train with the options of all tasks, from the newest checkpoint."""
    trainer = lightning.Trainer(
        max_epochs=2, default_root_dir=folder, accelerator="cpu", callbacks=list(callbacks)
    )
    newest = max(folder.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
    trainer.fit(module, *loaders, ckpt_path=newest)
    return trainer.callback_metrics


class Module(lightning.LightningModule):
    """A network, a metric for each split, and the steps of most tasks."""

    def __init__(self, net: nn.Module, build_metric: Any = None) -> None:
        super().__init__()
        self.net = net
        if build_metric is not None:
            self.metrics = nn.ModuleDict({"train_": build_metric(), "valid_": build_metric()})

    def configure_optimizers(self) -> Any:
        """Return Adam for the parameters that train."""
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=1e-2)

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss."""
        return self.step(batch, "train_")

    def validation_step(self, batch: Any, _: int) -> None:
        """Measure a batch."""
        self.step(batch, "valid_")

    def log_epoch(self, split: str, count: int, **values: Any) -> None:
        """Log the means over the epoch."""
        named = {split + name: value for name, value in values.items()}
        self.log_dict(named, on_step=False, on_epoch=True, batch_size=count)


class ClassifierModule(Module):
    """The steps of the tasks that train a classifier."""

    def step(self, batch: Any, split: str) -> Any:
        """Measure a batch, and return the loss."""
        images, targets = batch
        logits = self.net(images)
        loss = F.cross_entropy(logits, targets)
        self.metrics[split](logits, targets)
        self.log_epoch(split, len(images), loss=loss, accuracy=self.metrics[split])
        return loss


def build_accuracy() -> Any:
    """Return the accuracy of two classes."""
    return Accuracy("multiclass", num_classes=2)


def segmentation(folder: Path) -> Any:
    """Train a class for each pixel; measure the mean IoU."""

    class Net(Module):
        def step(self, batch: Any, split: str) -> Any:
            images, targets = batch
            logits = self.net(images)
            loss = F.cross_entropy(logits, targets)
            self.metrics[split](logits.argmax(1), targets)
            self.log_epoch(split, len(images), loss=loss, iou=self.metrics[split])
            return loss

    module = Net(Pixels(), lambda: JaccardIndex("multiclass", num_classes=2))
    return fit(folder, module, masks())


def detection(folder: Path) -> Any:
    """Train boxes; measure the mean average precision."""

    class Net(Module):
        def step(self, batch: Any, split: str) -> Any:
            loss, predictions = self.net(*batch)
            self.metrics[split].update(predictions, batch[1])
            self.log_epoch(split, len(batch[1]), loss=loss)
            return loss

        def log_average(self, split: str) -> None:
            self.log(f"{split}map", self.metrics[split].compute()["map"])
            self.metrics[split].reset()

        def on_train_epoch_end(self) -> None:
            self.log_average("train_")

        def on_validation_epoch_end(self) -> None:
            self.log_average("valid_")

    return fit(folder, Net(Detector(), MeanAveragePrecision), boxes())


def language_model(folder: Path) -> Any:
    """Train the next token at each position; measure the perplexity."""

    class Net(Module):
        def step(self, batch: Any, split: str) -> Any:
            ids, targets = batch
            logits = self.net(ids)
            loss = F.cross_entropy(logits, targets)
            self.metrics[split](logits.transpose(1, 2), targets)
            self.log_epoch(split, len(ids), loss=loss, perplexity=self.metrics[split])
            return loss

    return fit(folder, Net(Gpt(), Perplexity), characters())


def contrastive(folder: Path) -> Any:
    """Train features of two views without classes; measure how often the views find each other."""

    class Net(Module):
        def step(self, batch: Any, split: str) -> Any:
            first, second = (F.normalize(self.net(view), dim=1) for view in batch)
            logits, partners = first @ second.T / 0.2, torch.arange(len(first))
            loss = F.cross_entropy(logits, partners)
            accuracy = (logits.argmax(1) == partners).float().mean()
            self.log_epoch(split, len(first), loss=loss, accuracy=accuracy)
            return loss

    return fit(folder, Net(Encoder()), views())


def adversarial(folder: Path) -> Any:
    """Train a generator and a critic; measure the loss of each."""

    class Net(Module):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            networks = self.net.generator, self.net.critic
            return [torch.optim.Adam(network.parameters(), lr=1e-3) for network in networks]

        def step(self, batch: Any, split: str) -> Any:
            losses = self.net.losses(batch)
            self.log_epoch(split, len(batch), loss=losses[0], critic=losses[1])
            return losses

        def training_step(self, batch: Any, _: int) -> None:
            losses = self.step(batch, "train_")
            for optimizer, loss in zip(self.optimizers(), losses, strict=True):
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.untoggle_optimizer(optimizer)

    return fit(folder, Net(Gan()), points())


def multi_task(folder: Path) -> Any:
    """Train two heads; measure the accuracy of one and the loss of the other."""

    class Net(Module):
        def step(self, batch: Any, split: str) -> Any:
            logits, kind, size = self.net.losses(*batch)
            self.metrics[split](logits, batch[1]["kind"])
            self.log_epoch(split, len(logits), loss=kind + size, size=size, accuracy=self.metrics[split])
            return kind + size

    return fit(folder, Net(TwoHeads(), build_accuracy), two_targets())


def lora(folder: Path) -> Any:
    """Train the adapters of a classifier only."""
    module = ClassifierModule(AdaptedClassifier(), build_accuracy)
    for name, parameter in module.net.named_parameters():
        parameter.requires_grad_("lora" in name)
    return fit(folder, module, classes())


def folds(folder: Path) -> Any:
    """Train a classifier on each of three divisions of the data; return the mean accuracy."""
    values, samples = [], digits()
    for fold in range(3):
        parts = [[i for i in range(len(samples)) if (i % 3 == fold) is valid] for valid in (False, True)]
        loaders = [DataLoader(Subset(samples, part), 8) for part in parts]
        found = fit(folder / f"fold-{fold}", ClassifierModule(Classifier(), build_accuracy), loaders)
        values.append(float(found["valid_accuracy"]))
    return sum(values) / len(values)


def autoencoder(folder: Path) -> Any:
    """Train the images themselves as targets."""

    class Net(Module):
        def step(self, batch: Any, split: str) -> Any:
            images = batch[0].flatten(1)
            loss = F.mse_loss(self.net(batch[0]), images)
            self.log_epoch(split, len(images), loss=loss)
            return loss

    return fit(folder, Net(nn.Sequential(*Encoder(), nn.Linear(16, 64))), classes())


def fine_tuning(folder: Path) -> Any:
    """Train the head, and from epoch 2 the encoder too."""

    class Thaw(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.net[0])

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.net[0], optimizer)

    return fit(folder, ClassifierModule(Classifier(), build_accuracy), classes(), Thaw())
