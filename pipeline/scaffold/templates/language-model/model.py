"""A transformer that predicts the next character. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stages.contracts.outputs import ClassificationOutput
from stages.data.batchers import PaddedBatch
from stages.models import ClassificationStep


class LanguageModel(ClassificationStep, nn.Module):
    """A causal transformer: each position attends to itself and to the positions before it.

    The length of a window (T,) and the number of ids, V, come from the data.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        vocabulary_size: int,
        *,
        width: int = 48,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(input_shape[0], width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.output = nn.Linear(width, vocabulary_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (B, V, T) of the character after each of *ids* (B, T)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        later = places[None, :] > places[:, None]
        encoded = self.blocks(self.tokens(ids) + self.positions(places), mask=later, is_causal=True)
        logits: Tensor = self.output(encoded).transpose(1, 2)
        return logits

    def forward_classification(self, batch: PaddedBatch) -> ClassificationOutput:
        """Return loss, logits and targets of a batch of windows, each with the next characters as targets."""
        logits = self(batch.inputs)
        loss = self.loss(logits, batch.targets)
        return ClassificationOutput(loss, logits, batch.targets, weight=batch.mask.sum())

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int) -> Tensor:
        """Return *ids* (B, T) with *count* more, each drawn from the predicted probabilities."""
        for _ in range(count):
            logits = self(ids[:, -self.positions.num_embeddings :])[:, :, -1]
            ids = torch.cat([ids, torch.multinomial(logits.softmax(1), 1)], 1)
        return ids
