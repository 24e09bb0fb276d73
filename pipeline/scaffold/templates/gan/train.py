"""The stage fit: adversarial training, written out. `dvc repro` runs it as `python train.py`.

The critic is that of a Wasserstein GAN with a gradient penalty (Gulrajani et al., 2017).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model import Gan
from pipeline.engine.custom_stage import run_custom_stage
from pipeline.project.params import Params
from stages import data
from stages.contracts.config import arguments_of
from stages.system.files import write_text
from stages.contracts.history import Split, Value
from stages.devices import derive_seed, find_device
from stages.learner import LoopCheckpoints
from stages.learner.from_params import build_loader
from stages.loggers import write_curves, write_metrics
from stages.metrics import Mean
from stages.optim import learning_rate_of
from stages.records import DefaultRecorder, save_file

CRITIC_STEPS = 3
"""Steps of the critic for each step of the generator."""
PENALTY = 1.0
"""Weight of the gradient penalty."""


class Trainer:
    """The two networks and their optimizers."""

    def __init__(self, gan: Gan, learning_rate: float) -> None:
        self.gan = gan
        networks = (gan.generator, gan.critic)
        self.generator_optimizer, self.critic_optimizer = (
            torch.optim.Adam(each.parameters(), lr=learning_rate, betas=(0.5, 0.9)) for each in networks
        )

    def generate(self, count: int) -> Tensor:
        """Return *count* points, (count, 2)."""
        device = next(self.gan.parameters()).device
        points: Tensor = self.gan(torch.randn(count, self.gan.latent_size).to(device))
        return points

    def train_critic(self, real: Tensor) -> Tensor:
        """Update the critic with *real* points and as many generated ones, and return its loss."""
        fake = self.generate(len(real)).detach()
        share = torch.rand(len(real), 1).to(real.device)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(self.gan.critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = self.gan.critic(fake).mean() - self.gan.critic(real).mean() + PENALTY * penalty
        return _update(self.critic_optimizer, loss)

    def train_generator(self, count: int) -> Tensor:
        """Update the generator so that the critic takes *count* of its points for real; return its loss."""
        return _update(self.generator_optimizer, -self.gan.critic(self.generate(count)).mean())

    def run_epoch(self, batches: Any, device: torch.device) -> dict[str, float]:
        """Return the mean loss of each network over an epoch."""
        losses = {"Critic Loss": Mean(0.0, 0), "Generator Loss": Mean(0.0, 0)}
        for step, batch in enumerate(batches, start=1):
            real = batch.inputs.to(device)
            losses["Critic Loss"] += Mean.from_mean(self.train_critic(real), len(real))
            if step % CRITIC_STEPS == 0:
                losses["Generator Loss"] += Mean.from_mean(self.train_generator(len(real)), len(real))
        return {name: loss.value for name, loss in losses.items()}


def measure_distance(one: Tensor, other: Tensor) -> float:
    """Return the energy distance of two sets of points, (N, 2) and (M, 2); 0 for equal distributions."""
    apart, within, within_other = (
        torch.cdist(*pair).mean() for pair in ((one, other), (one, one), (other, other))
    )
    return float(2 * apart - within - within_other)


def train(params: Params, paths: Mapping[str, Path], folder: Path) -> None:
    """Train, and write the outputs of the stage to *folder*; resume from the checkpoints there, if any."""
    torch.set_num_threads(params.fit.num_threads or 1)
    device = find_device(str(params.fit.device))
    prepared = data.read(paths["data"])
    loader = build_loader(params.fit, prepared, Split.TRAIN)
    valid = torch.cat([batch.inputs for batch in build_loader(params.fit, prepared, Split.VALID)]).to(device)
    torch.manual_seed(params.build_learner.seed)
    arguments: dict[str, Any] = arguments_of(params.build_learner.model)
    trainer = Trainer(Gan(**arguments).to(device), learning_rate_of(params.build_learner.optimizer))
    checkpoints = LoopCheckpoints(
        folder / "checkpoint",
        trainer.gan,
        generator=trainer.generator_optimizer,
        critic=trainer.critic_optimizer,
    )
    for epoch in range(checkpoints.restore() + 1, params.fit.num_epochs + 1):
        torch.manual_seed(derive_seed(params.fit.seed, epoch))  # a resumed run draws the same latents
        loader.set_epoch(epoch)  # and has the same order
        for name, loss in trainer.run_epoch(loader, device).items():
            checkpoints.history.add(Value(epoch, Split.TRAIN, name, loss))
        distance = measure_distance(sample(trainer, len(valid), params.fit.seed), valid)
        checkpoints.history.add(Value(epoch, Split.VALID, "Distance Error", distance))
        print(f"epoch {epoch}: distance {distance:.4f}", flush=True)
        checkpoints.save(epoch)
    points = sample(trainer, len(valid), params.fit.seed).tolist()
    write_text(folder / "samples.csv", "x,y\n" + "".join(f"{x:.4f},{y:.4f}\n" for x, y in points))
    save_file(trainer.gan, folder / "model", DefaultRecorder())
    write_metrics(checkpoints.history, folder / "metrics.json")
    write_curves(checkpoints.history, folder / "plots")


@torch.no_grad()
def sample(trainer: Trainer, count: int, seed: int) -> Tensor:
    """Return *count* generated points, from the same latents in every epoch."""
    torch.manual_seed(derive_seed(seed, "samples"))
    return trainer.generate(count)


def _update(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    run_custom_stage("fit", train)
