"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from stages.models import ClassificationStep


class SmallBert(ClassificationStep, BertForSequenceClassification):
    """BERT with random weights, for sequences that are filled up with id 0.

    *options* are those of `transformers.BertConfig`, which `params.yaml` has as keys of the model. By
    default, there are as many positions as elements in a sequence.
    """

    def __init__(
        self, input_shape: Sequence[int], vocabulary_size: int, num_classes: int, **options: float
    ) -> None:
        options = {"max_position_embeddings": input_shape[0], **options}
        super().__init__(
            BertConfig(vocab_size=vocabulary_size, num_labels=num_classes, pad_token_id=0, **options)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (B, classes) of *ids* (B, T)."""
        logits: Tensor = super().forward(ids, attention_mask=(ids != 0).long()).logits
        return logits
