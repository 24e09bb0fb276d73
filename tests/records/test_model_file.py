"""`save_file` and `load_file` do what Burn's methods of these names do."""

import copy

import pytest
import torch
from torch import nn

from stages.contracts.errors import RecordError
from stages.records import CompactRecorder, DefaultRecorder, load_file, load_into, read_item, save_file
from stages.records.recorder import RECORDERS


def made(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def weights(model):
    return {name: each.clone() for name, each in model.state_dict().items() if "num_batches" not in name}


@pytest.mark.parametrize("kind", RECORDERS)
def test_saved_model_is_loaded_bit_for_bit(kind, tmp_path):
    model, recorder = made(), RECORDERS[kind]()

    path = save_file(model, tmp_path / "new" / "folder" / "model", recorder)
    other = load_file(made(seed=1), tmp_path / "new" / "folder" / "model", recorder)

    assert path.name == f"model{recorder.suffix}"
    torch.testing.assert_close(weights(other), weights(model), rtol=0, atol=0)


@pytest.mark.parametrize("given", ["model", "model.mpk.gz", "model.mpk", "model.pt"])
def test_path_gets_the_extension_of_the_recorder(given, tmp_path):
    names = {"model.mpk": "model.mpk.gz", "model.pt": "model.mpk.gz"}
    path = save_file(made(), str(tmp_path / given), DefaultRecorder())

    assert path.name == names.get(given, "model.mpk.gz")
    load_file(made(), str(tmp_path / given), DefaultRecorder())


def test_file_of_any_precision_is_loaded(tmp_path):
    model = made()
    save_file(model, tmp_path / "model", CompactRecorder())

    loaded = load_file(made(seed=1), tmp_path / "model", DefaultRecorder())

    torch.testing.assert_close(weights(loaded), weights(model), rtol=1e-3, atol=1e-3)


def test_saved_file_is_the_record_that_burn_loads(tmp_path):
    item = read_item(save_file(nn.Linear(3, 2), tmp_path / "model", DefaultRecorder()))

    assert set(item) == {"weight", "bias"}
    assert set(item["weight"]) == {"id", "param"}
    assert item["weight"]["param"].shape == (3, 2)
    load_into(nn.Linear(3, 2), item, layout="burn")


def test_file_of_another_model_is_refused_without_changes(tmp_path):
    save_file(nn.Linear(3, 2), tmp_path / "model", DefaultRecorder())
    model = made()
    before = copy.deepcopy(model.state_dict())

    with pytest.raises(RecordError, match=r"model\.mpk\.gz"):
        load_file(model, tmp_path / "model", DefaultRecorder())
    with pytest.raises(RecordError, match="no record at"):
        load_file(model, tmp_path / "missing", DefaultRecorder())
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
