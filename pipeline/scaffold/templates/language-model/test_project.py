"""Quick tests of the model and the data, to run before a long training."""

import torch

from model import LanguageModel
from source import windows


def test_targets_are_the_next_characters() -> None:
    """In a window, each target is the input one position later."""
    train = windows(sentences=20, length=16).train

    assert (train.inputs[:, 1:] == train.targets[:, :-1]).all()
    assert train.inputs.min() > 0


def test_prediction_does_not_depend_on_later_characters() -> None:
    """Two texts with the same beginning have the same logits there."""
    torch.manual_seed(0)
    model = LanguageModel((8,), 10).eval()
    one, other = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 9, 9]])

    logits = model(torch.stack([one, other]))

    torch.testing.assert_close(logits[0, :, :3], logits[1, :, :3])
    assert not logits[0, :, 3].equal(logits[1, :, 3])


def test_generated_text_continues_the_start() -> None:
    """A text may become longer than a window."""
    model = LanguageModel((8,), 10).eval()

    ids = model.generate(torch.tensor([[1, 2, 3]]), count=9)

    assert ids.shape == (1, 12)
    assert ids[0, :3].tolist() == [1, 2, 3]
