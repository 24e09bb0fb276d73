"""The data and the networks of the ten tasks, which both programs of a task use and which are not counted."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

COUNT = 24
TOKENS = 12


def _loaders(samples: list[Any], collate: Any = None) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return a loader of two thirds of *samples*, shuffled, and one of the rest."""
    train: Any = samples[: 2 * COUNT // 3]
    valid: Any = samples[2 * COUNT // 3 :]
    return DataLoader(train, 8, shuffle=True, collate_fn=collate), DataLoader(valid, 8, collate_fn=collate)


def _draw(*shape: int) -> Tensor:
    return torch.rand(COUNT, *shape, generator=torch.Generator().manual_seed(0))


def digits() -> list[tuple[Tensor, Tensor]]:
    """Return images (1, 8, 8) and their classes: whether the upper half is brighter."""
    images = _draw(1, 8, 8)
    return [(image, (image[:, :4].mean() > image[:, 4:].mean()).long()) for image in images]


def classes() -> Any:
    """Return the loaders of `digits`."""
    return _loaders(digits())


def masks() -> Any:
    """Return the loaders of images and of a class for each pixel."""
    return _loaders([(image, (image[0] > 0.5).long()) for image in _draw(1, 8, 8)])


def boxes() -> Any:
    """Return the loaders of a list of images, and of a list of their boxes and labels."""
    samples = []
    for image, corner in zip(_draw(1, 16, 16), 8 * _draw(2), strict=True):
        box = torch.cat((corner, corner + 6))[None]
        samples.append((image, {"boxes": box, "labels": torch.zeros(1, dtype=torch.int64)}))
    return _loaders(
        samples, lambda items: (torch.stack([image for image, _ in items]), [t for _, t in items])
    )


def characters() -> Any:
    """Return the loaders of sequences of ids, and of the next id of each."""
    rows = (_draw(TOKENS + 1) * 20).long()
    return _loaders([(row[:-1], row[1:]) for row in rows])


def views() -> Any:
    """Return the loaders of two noisy views of each image."""
    return _loaders([tuple(image + 0.1 * torch.rand(2, 1, 8, 8)) for image in _draw(1, 8, 8)])


def points() -> Any:
    """Return the loaders of points on a circle."""
    angles = 6.3 * _draw()
    return _loaders([torch.stack((angle.cos(), angle.sin())) for angle in angles])


def two_targets() -> Any:
    """Return the loaders of images, and of a class and a number for each."""
    return _loaders([(image, {"kind": kind, "size": image.mean()}) for image, kind in digits()])


class Pixels(nn.Conv2d):
    """Two logits for each pixel."""

    def __init__(self) -> None:
        super().__init__(1, 2, 3, padding=1)


class Detector(nn.Module):
    """A box and a score for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 5))

    def forward(
        self, images: Tensor, targets: list[dict[str, Tensor]]
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Return the loss and the predictions."""
        rows = self.head(images)
        loss = F.l1_loss(rows[:, :4], torch.cat([target["boxes"] for target in targets]))
        label = torch.zeros(1, dtype=torch.int64)
        return loss, [
            {"boxes": r[None, :4].detach(), "scores": r[4:].detach(), "labels": label} for r in rows
        ]


class Gpt(nn.Module):
    """A causal transformer with a layer; logits (B, 20, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.output = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next id at each position."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.output(self.block(self.embed(ids), mask, is_causal=True)).transpose(1, 2)


class Encoder(nn.Sequential):
    """Features (B, 16) of images (B, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16))


class Classifier(nn.Sequential):
    """Two logits for each image, from an encoder and a head."""

    def __init__(self) -> None:
        super().__init__(Encoder(), nn.Linear(16, 2))


class Gan(nn.Module):
    """A generator of points and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))

    def losses(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the generator and that of the critic."""
        fake = self.generator(torch.randn(len(real), 4))
        critic = F.softplus(self.critic(fake.detach())).mean() + F.softplus(-self.critic(real)).mean()
        return F.softplus(-self.critic(fake)).mean(), critic


class TwoHeads(nn.Module):
    """A class and a number for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.kind, self.size = Encoder(), nn.Linear(16, 2), nn.Linear(16, 1)

    def losses(self, images: Tensor, targets: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of the class, and the loss of each head."""
        features = self.encoder(images)
        logits, sizes = self.kind(features), self.size(features)[:, 0]
        return logits, F.cross_entropy(logits, targets["kind"]), F.mse_loss(sizes, targets["size"])


class Adapted(nn.Linear):
    """A linear layer with a low-rank adapter. Hu et al., "LoRA", 2021."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_a, self.lora_b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the layer and of the adapter together."""
        return super().forward(inputs) + inputs @ self.lora_a.T @ self.lora_b.T


class AdaptedClassifier(nn.Sequential):
    """A classifier with two layers, each with an adapter."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), Adapted(64, 16), nn.ReLU(), Adapted(16, 2))
