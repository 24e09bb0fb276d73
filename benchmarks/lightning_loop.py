"""Lightning's Trainer with its defaults: the CSV logger at every step, the bar, a checkpoint."""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from loop import normalised
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """The textbook's step, as Lightning has it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Loss and accuracy, logged."""
        inputs, targets = batch
        logits = self.model(normalised(inputs))
        loss = F.cross_entropy(logits, targets)
        self.log("loss", loss)
        self.log("accuracy", (logits.argmax(1) == targets).float().mean())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class AfterStep(lightning.Callback):
    """Calls *action* after each step of training."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def on_train_batch_end(self, *_: Any) -> None:
        """Call it."""
        self._action()


def lightning_run(
    model: Any,
    images: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
    *,
    accelerator: str = "cpu",
    after_step: Callable[[], object] | None = None,
) -> None:
    """Train for one epoch, and call *after_step* after each step."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator=accelerator,
            devices=1,
            default_root_dir=directory,
            log_every_n_steps=1,
            callbacks=[AfterStep(after_step)] if after_step else None,
            logger=lightning.pytorch.loggers.CSVLogger(directory),
        )
        trainer.fit(Module(model), DataLoader(TensorDataset(images, labels), batch_size, shuffle=True))
