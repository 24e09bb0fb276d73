"""Quick tests of the model and the texts, to run before a long training."""

from pathlib import Path

import torch

from make_reviews import COUNT, make_reviews
from model import TextClassifier
from stages.data import PadBatcher
from stages.data.sources.texts import text


def test_every_review_has_one_of_three_classes(tmp_path: Path) -> None:
    """The file has as many reviews as lines after the first."""
    make_reviews(tmp_path / "reviews.csv")

    arrays = text(str(tmp_path / "reviews.csv"), tokenizer="bytes")

    assert arrays.facts["class_names"] == ("mixed", "negative", "positive")
    assert len(arrays) == COUNT


def test_padding_changes_no_logit() -> None:
    """A text has the same logits alone and in a batch with a longer text."""
    torch.manual_seed(0)
    model = TextClassifier((6,), 10, 3).eval()
    texts = [(torch.tensor(ids), torch.tensor(0)) for ids in ([3, 1, 2], [5, 4, 4, 1, 2, 9])]

    both = PadBatcher().batch(texts)
    alone = PadBatcher().batch(texts[:1])

    torch.testing.assert_close(model(both.inputs, both.mask)[:1], model(alone.inputs, alone.mask))


def test_order_of_the_words_changes_the_logits() -> None:
    """The model knows the position of each token."""
    torch.manual_seed(0)
    model = TextClassifier((3,), 10, 3).eval()
    mask = torch.ones(1, 3, dtype=torch.bool)

    assert not model(torch.tensor([[3, 1, 2]]), mask).equal(model(torch.tensor([[2, 1, 3]]), mask))
