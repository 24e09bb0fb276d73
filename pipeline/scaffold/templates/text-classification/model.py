"""A transformer encoder for texts. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stages.contracts.outputs import ClassificationOutput
from stages.data.batchers import PaddedBatch
from stages.models import ClassificationStep


class TextClassifier(ClassificationStep, nn.Module):
    """Embeddings of tokens and positions, transformer layers, and the mean over the tokens of a text.

    The length of the longest text (T,), the number of tokens in the vocabulary and the number of classes come
    from the data.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        vocabulary_size: int,
        num_classes: int,
        *,
        width: int = 48,
        heads: int = 4,
        layers: int = 1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width, padding_idx=0)
        self.positions = nn.Embedding(input_shape[0], width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, num_classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits (B, classes) of *ids* (B, T); *mask* is True for tokens and False for padding."""
        places = torch.arange(ids.shape[1], device=ids.device)
        encoded = self.encoder(self.tokens(ids) + self.positions(places), src_key_padding_mask=~mask)
        weights = mask.unsqueeze(2).to(encoded.dtype)
        logits: Tensor = self.output((encoded * weights).sum(1) / weights.sum(1))
        return logits

    def forward_classification(self, batch: PaddedBatch) -> ClassificationOutput:
        """Return loss, logits and targets of a batch that the batcher `pad` has made."""
        logits = self(batch.inputs, batch.mask)
        return ClassificationOutput(self.loss(logits, batch.targets), logits, batch.targets)
