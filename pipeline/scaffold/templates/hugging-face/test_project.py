"""Quick tests of the model and the data, to run before a long training."""

import torch

from model import SmallBert
from source import MAX_TERMS, WORDS, sums


def build_model(**options: float) -> SmallBert:
    """Return a model of one layer."""
    options |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return SmallBert((2 * MAX_TERMS - 1,), vocabulary_size=len(WORDS), num_classes=2, **options).eval()


def test_class_is_the_sign_of_the_sum() -> None:
    """Python evaluates the same sum."""
    arrays = sums(samples=50)

    symbols = {"plus": "+", "minus": "-"}
    for ids, target in zip(arrays.inputs, arrays.targets, strict=True):
        words = [WORDS[each] for each in ids]
        assert (eval("".join(symbols.get(word, word) for word in words)) > 0) == target  # noqa: S307  our words


def test_model_has_as_many_positions_as_pretrained_weights() -> None:
    """Without the option, it has those of the longest sum."""
    models = build_model(), build_model(max_position_embeddings=512)

    positions = [model.bert.embeddings.position_embeddings.num_embeddings for model in models]
    assert positions == [2 * MAX_TERMS - 1, 512]


def test_padding_does_not_change_the_logits() -> None:
    """A sum has the same logits whether it is filled up or cut after its last word."""
    model = build_model()
    ids = torch.tensor([[5, 1, 7, 0, 0, 0, 0]])

    with torch.no_grad():
        torch.testing.assert_close(model(ids), model(ids[:, :3]))


def test_weights_are_random_and_all_trained() -> None:
    """Every parameter has a gradient, apart from those that the task does not use."""
    model = build_model()

    model(torch.tensor([[5, 1, 7]])).sum().backward()

    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
