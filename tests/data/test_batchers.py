"""Batchers that params name."""

from functools import partial

import pytest
import torch
from torch.utils.data import default_collate

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError, PluginError
from stages.data import (
    DataLoaderBuilder,
    Normalization,
    NormalizeBatcher,
    PadBatcher,
    TensorDataset,
    build_batcher,
)
from stages.data.datasets import Samples

ITEMS = [(torch.tensor([2.0]), torch.tensor(0)), (torch.tensor([4.0]), torch.tensor(1))]
MEAN_3_STD_2 = Normalization(mean=3.0, std=2.0)


def build(kind, **arguments):
    return build_batcher(Use(kind=kind, **arguments), MEAN_3_STD_2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, [-0.5, 0.5]), ({"mean": 0.0}, [1.0, 2.0]), ({"mean": 2.0, "std": 1.0}, [0.0, 2.0])],
)
def test_batcher_is_built_with_the_normalization_of_the_data_unless_params_override_it(arguments, expected):
    inputs, targets = build("normalize", **arguments).batch(ITEMS)

    assert inputs.flatten().tolist() == expected
    assert targets.tolist() == [0, 1]


def test_function_receives_the_items_of_a_batch_and_its_arguments():
    assert build("builtins:sorted").batch([2, 3, 1]) == [1, 2, 3]
    assert build("builtins:sorted", reverse=True).batch([2, 3, 1]) == [3, 2, 1]


def test_collate_function_of_pytorch_is_a_batcher():
    dataset = TensorDataset(torch.arange(6).reshape(3, 2), torch.arange(3))
    loader = DataLoaderBuilder(build("torch.utils.data:default_collate")).batch_size(2).build(dataset)

    batches = [[part.tolist() for part in batch] for batch in loader]

    assert batches == [[[[0, 1], [2, 3]], [0, 1]], [[[4, 5]], [2]]]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("normalise", {}, "no batcher is named 'normalise'"),
        ("normalize", {"size": 3}, "batcher 'normalize' cannot be built: .*'size'"),
        ("builtins:object", {}, "batcher 'builtins:object': .* must be a function or have a method batch"),
    ],
)
def test_batcher_that_cannot_be_built_is_reported_with_its_name(kind, arguments, message):
    with pytest.raises(PluginError, match=message):
        build(kind, **arguments)


def mean(items, scale=1):
    return torch.stack([scale * inputs for inputs, _ in items]).mean(0)


def first(items, scale=1):
    return torch.stack([scale * inputs for inputs, _ in items])


first.per_sample = True


class FirstBatcher:
    per_sample = True

    def batch(self, items):
        return first(items)


class CenterBatcher:
    """A batcher with a function of its own, which is not all that it does."""

    function = staticmethod(default_collate)

    def batch(self, items):
        inputs, targets = self.function(items)
        return inputs - inputs.mean(0), targets


@pytest.mark.parametrize(
    ("batcher", "expected"),
    [
        (NormalizeBatcher(), True),
        (CenterBatcher(), False),
        (PadBatcher(), False),
        (default_collate, True),
        (mean, False),
        (first, True),
        (partial(first, scale=2), True),
        (FirstBatcher(), True),
    ],
)
def test_ranks_divide_the_samples_only_of_batchers_that_are_per_sample(batcher, expected):
    loader = DataLoaderBuilder(batcher).build(TensorDataset(torch.zeros(3, 2), torch.zeros(3)))

    assert loader.loads_shares is expected


@pytest.mark.parametrize("mean", [1e6, [1e6, -3e5]], ids=["dataset", "channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_means_are_subtracted_without_loss(mean, dtype):
    """A float32 has a distance of 0.06 to the next one at a million."""
    means, std = torch.tensor(mean, dtype=torch.float64), 0.25
    expected = torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    stored = (means + std * expected).to(dtype)
    batcher = NormalizeBatcher(mean, std if isinstance(mean, float) else [std, std])

    inputs = batcher.batch([(row, torch.tensor(0)) for row in stored]).inputs

    assert inputs.dtype == torch.float32
    assert (inputs - (stored.double() - means) / std).abs().max() < 1e-6
    assert (inputs - expected).abs().max() < (0.2 if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("std", [1e-40, 2e38], ids=["tiny", "huge"])
@pytest.mark.parametrize("channels", [0, 2])
def test_inverse_of_std_that_float32_lacks_is_not_rounded(channels, std):
    stored = (std * torch.tensor([[1.0, -0.5], [0.25, 1.5]], dtype=torch.float64)).float()
    numbers = ([0.0] * channels, [std] * channels) if channels else (0.0, std)

    inputs = NormalizeBatcher(*numbers).batch([(row, torch.tensor(0)) for row in stored]).inputs

    assert torch.equal(inputs, (stored.double() / std).float())


def test_normalization_does_not_depend_on_the_default_dtype_of_the_program():
    items = [(torch.linspace(0, 1, 9, dtype=torch.float32), torch.tensor(0))]
    expected = NormalizeBatcher(0.1307, 0.3081).batch(items).inputs
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(NormalizeBatcher(0.1307, 0.3081).batch(items).inputs, expected)
    finally:
        torch.set_default_dtype(default)


def test_large_means_need_a_channel_for_each():
    with pytest.raises(BuilderError, match="normalizes 2 channels or columns"):
        NormalizeBatcher([1e6, 1e6], [1.0, 1.0]).batch([(torch.zeros(3), torch.tensor(0))])


@pytest.mark.parametrize(
    ("inputs", "found"),
    [({"b": torch.ones(3, 2)}, "'b', only for a. Pass dicts"), (torch.ones(3, 2), "'inputs', only for a")],
)
def test_inputs_without_numbers_are_an_error(inputs, found):
    batcher = NormalizeBatcher({"a": 1.0}, {"a": 2.0})

    with pytest.raises(BuilderError, match=f"no mean and std for the inputs {found}"):
        batcher.batch(Samples(inputs))


@pytest.mark.parametrize("std", [0, -1.0, [1.0, 0.0], float("nan"), {"a": 0.0}])
def test_numbers_by_which_no_input_can_be_divided_are_refused(std):
    """They would make NaN or infinity of the inputs, which the loss reports long after."""
    mean = {"a": 0.0} if isinstance(std, dict) else 0.0

    with pytest.raises(
        BuilderError, match="batcher: std must be finite and above 0; found .*Divide equal val"
    ):
        NormalizeBatcher(mean, std)
