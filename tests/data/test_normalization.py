"""Normalization per data set, per channel and per column."""

import json

import numpy as np
import pytest
import torch

from stages import data
from stages.contracts.errors import BuilderError, DataError
from stages.data import NormalizationConfig, NormalizeBatcher
from stages.data.storage import SUM_VALUES
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data

GENERATOR = np.random.default_rng(0)
TABLE = (GENERATOR.normal(size=(3000, 4)) * [1, 10, 100, 0] + [0, 5, 1e6, 0.1]).astype(np.float32)
LARGE = GENERATOR.integers(0, 200, (2 * SUM_VALUES // 300, 3, 10, 10), dtype=np.uint8)
INPUTS = {
    "table with a constant column": TABLE,
    "images of several blocks": LARGE,
    "booleans": GENERATOR.integers(0, 2, (50, 3, 2)).astype(bool),
    "integers of 64 bits": GENERATOR.integers(-(2**40), 2**40, (50, 2)),
}


def prepare(inputs, **config):
    arrays = data.Arrays(inputs, np.arange(len(inputs)) % 2)
    return data.prepare(data.Splits(arrays, arrays), NormalizationConfig(**config))


def first_batch(prepared):
    numbers = prepared.info.normalization
    made = data.DataLoaderBuilder(NormalizeBatcher(numbers.mean, numbers.std))
    return next(iter(made.batch_size(len(prepared.train)).build(prepared.train)))


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_mean_and_standard_deviation_of_each_channel_are_those_of_numpy(inputs):
    axes = (0, *range(2, inputs.ndim))

    numbers = prepare(inputs, per="channel").info.normalization

    expected = inputs.std(axis=axes, dtype=np.float64)
    is_constant = inputs.min(axis=axes) == inputs.max(axis=axes)
    assert numbers.mean == pytest.approx(inputs.mean(axis=axes, dtype=np.float64).tolist(), rel=1e-12)
    assert numbers.std == pytest.approx(np.where(is_constant, 1, expected).tolist(), rel=1e-12)


@pytest.mark.parametrize("per", ["dataset", "channel"])
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_normalized_inputs_have_the_requested_range(inputs, per):
    axes = (0, *range(2, inputs.ndim)) if per == "channel" else None
    numbers = prepare(inputs, kind="min_max", per=per).info.normalization

    scaled = (inputs.astype(np.float64) - shaped(numbers.mean, inputs)) / shaped(numbers.std, inputs)

    assert np.all(scaled.min(axis=axes) == 0)
    assert set(scaled.max(axis=axes).flatten().tolist()) <= {0.0, 1.0}


def shaped(numbers, inputs):
    """Return *numbers*, one or one per channel, so that they can be subtracted from *inputs*."""
    return np.asarray(numbers).reshape(-1, *[1] * (inputs.ndim - 2))


def test_loader_normalizes_each_column():
    batch = first_batch(prepare(TABLE[:, :2], per="channel"))

    assert batch.inputs.mean(0).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert batch.inputs.std(0).tolist() == pytest.approx([1, 1], rel=1e-3)


def test_inputs_without_normalization_are_only_converted():
    batch = first_batch(prepare(LARGE[:100], kind="none", per="channel"))

    assert torch.equal(batch.inputs, torch.from_numpy(LARGE[:100]).float())


@pytest.mark.parametrize("number", [120.5, [120.5, 120.5, 120.5]])
def test_equal_numbers_of_all_channels_are_one_number(number):
    images = torch.randint(0, 255, (5, 3, 4, 4), dtype=torch.uint8)
    samples = data.Samples(images, torch.zeros(5))

    batch = NormalizeBatcher(number, [57.0] * 3).batch(samples)

    torch.testing.assert_close(batch.inputs, NormalizeBatcher(120.5, 57.0).batch(samples).inputs)


def test_other_number_of_channels_is_refused():
    with pytest.raises(BuilderError, match="found 3 and 2"):
        NormalizeBatcher([0, 0, 0], [1, 1])
    with pytest.raises(BuilderError, match="normalizes 2 channels .* found samples of shape \\(3,\\)"):
        NormalizeBatcher([0, 0], [1, 1]).batch(data.Samples(torch.zeros(4, 3), torch.zeros(4)))


def test_samples_without_channels_are_refused():
    with pytest.raises(DataError, match="per: 'channel' needs samples with an axis"):
        prepare(np.arange(8.0), per="channel")


def test_stage_writes_the_numbers_of_each_channel(tmp_path):
    normalization = {"kind": "min_max", "per": "channel"}
    np.savez(tmp_path / "data.npz", inputs=TABLE, targets=np.arange(len(TABLE)) % 2)
    source = {"kind": "npz", "path": str(tmp_path / "data.npz")}

    load_data(LoadDataConfig(source=source, normalization=normalization), LoadDataPaths(tmp_path))

    numbers = json.loads((tmp_path / "dataset.json").read_text())["normalization"]
    assert [len(numbers["mean"]), len(numbers["std"])] == [4, 4]
    assert numbers["std"][3] == 1.0
    assert data.read(tmp_path).info.normalization.mean == tuple(numbers["mean"])
