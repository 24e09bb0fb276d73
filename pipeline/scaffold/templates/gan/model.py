"""The two networks. After an edit, `dvc repro` trains them again."""

from torch import Tensor, nn


class Gan(nn.Module):
    """A generator of points in the plane, and a critic that estimates how real points are."""

    def __init__(self, latent_size: int = 4, width: int = 64) -> None:
        super().__init__()
        self.latent_size = latent_size
        self.generator = _make_network(latent_size, width, 2)
        self.critic = _make_network(2, width, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """Return generated points (B, 2) for *latents* (B, latent_size)."""
        points: Tensor = self.generator(latents)
        return points


def _make_network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )
