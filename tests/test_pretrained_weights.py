"""Pretrained weights: files of `torch.save` and shards of safetensors, loaded by build-learner."""

import json
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file as save_safetensors

from pipeline.project.inputs import find_data_files
from stages.build_learner import build_learner
from stages.contracts.errors import CheckpointError, RecordError
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.params.build_learner_params import (
    OF_WEIGHTS,
    BuildLearnerConfig,
    BuildLearnerPaths,
    CheckpointConfig,
)
from stages.records import DefaultRecorder, Selection, load_into, read_item, save_file
from stages.records.torch_files import read_state_dict

MODEL = f"{__name__}:ResNetLike"


class ResNetLike(torch.nn.Module):
    """A stem, ten residual blocks and a head: 64 tensors."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(10))
        self.stem = torch.nn.Conv2d(1, 4, 3)
        self.head = torch.nn.Linear(4, num_classes)

    def forward(self, images):
        features = self.stem(images)
        for block in self.blocks:
            features = block(features)
        return self.head(features.mean((2, 3)))

    def train_step(self, batch):
        raise NotImplementedError

    valid_step = train_step


class Square(torch.nn.Module):
    """A layer of which no file proves whose axes it has."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = torch.nn.Linear(num_classes, num_classes, bias=False)

    train_step = valid_step = ResNetLike.train_step


class Block(torch.nn.Module):
    """A convolution and a norm: six tensors."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.scale = torch.nn.Parameter(torch.ones(4, 1, 1))
        self.shift = torch.nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, features):
        return features + self.norm(self.conv(features)) * self.scale + self.shift


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    load_data(LoadDataConfig(), LoadDataPaths(folder))
    return folder


@pytest.fixture
def pretrained():
    """Return the state dict of a trained model, 62 of its 64 tensors under other names."""
    torch.manual_seed(7)
    state = ResNetLike((1, 8, 8), 10).state_dict()
    assert len(state) == 64
    renamed = {name.replace("blocks.", "layers.unit").replace("stem", "conv1"): name for name in state}
    return {
        f"module.{new}" if not new.startswith("head") else new: state[old] for new, old in renamed.items()
    }


RENAME = {"rename": [[r"^module\.", ""], [r"^layers\.unit(\d+)", r"blocks.\1"], ["^conv1", "stem"]]}


def build(dataset, target, path, **options):
    checkpoint = {"path": str(path), **options}
    config = BuildLearnerConfig.model_validate({"model": MODEL, "checkpoint": checkpoint})
    build_learner(config, BuildLearnerPaths(dataset / "dataset.json", target), path)
    return target


def weights_in(learner):
    model = ResNetLike((1, 8, 8), 10)
    load_into(model, read_item(learner / "checkpoint/model-0.mpk.gz"), layout="burn")
    return model.state_dict()


def test_renamed_state_dict_is_loaded_with_a_report(dataset, pretrained, tmp_path, capsys):
    path = tmp_path / "weights.pth"
    torch.save(pretrained, path)

    learner = build(dataset, tmp_path / "learner", path, **RENAME)

    torch.manual_seed(7)
    expected = ResNetLike((1, 8, 8), 10).state_dict()
    found = weights_in(learner)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    report = json.loads((learner / "weights.json").read_text())
    assert sorted(expected) == report["loaded"]
    assert not any(report[key] for key in report if key != "loaded")
    assert "loaded: 64" in capsys.readouterr().out


class Malicious:
    """An object whose pickle creates the file *path* when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["value", "beside"])
def test_malicious_pickle_is_refused_and_not_executed(dataset, tmp_path, zipped, place):
    path, executed = tmp_path / "weights.pt", tmp_path / "executed"
    bad = Malicious(executed)
    value = bad if place == "value" else {"weight": torch.ones(2), "more": [bad]}
    torch.save(value, path, _use_new_zipfile_serialization=zipped)

    with (
        torch.serialization.safe_globals([os.mkdir, Malicious]),
        pytest.raises(
            RecordError, match=r"names 'posix.mkdir' at byte \d+.*nothing was imported or executed"
        ),
    ):
        build(dataset, tmp_path / "learner", path)

    assert not executed.exists()
    assert not (tmp_path / "learner").exists()


@pytest.mark.parametrize(
    "value",
    [torch.nn.Linear(2, 2), {"a": np.float64(1)}, {"a": {1, 2}}, {"a": torch.ones(2, dtype=torch.complex64)}],
)
def test_objects_other_than_tensors_and_plain_values_are_refused(tmp_path, value):
    torch.save(value, tmp_path / "weights.pt")

    with pytest.raises(
        RecordError, match=r"Save the weights alone, torch.save\(model.state_dict\(\), path\)"
    ):
        read_item(tmp_path / "weights.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_every_dtype_and_layout_are_restored(tmp_path, zipped):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = OrderedDict(
        {str(dtype).partition(".")[2]: torch.arange(4).to(dtype) for dtype in (torch.float16, torch.bfloat16)}
        | {str(dtype).partition(".")[2]: torch.arange(2).to(dtype) for dtype in (torch.bool, torch.int8)}
        | {"turned": base.t(), "rows": base[1:3], "column": base[:, 2], "empty": torch.ones(0, 3)}
        | {"scalar": torch.tensor(3), "parameter": torch.nn.Parameter(torch.ones(2)), "double": base.double()}
    )
    torch.save(state, tmp_path / "weights.pt", _use_new_zipfile_serialization=zipped)

    found = read_item(tmp_path / "weights.pt")

    assert list(found) == list(state)
    assert all(
        found[name].dtype == each.dtype and torch.equal(found[name], each) for name, each in state.items()
    )


def test_unsigned_tensors_are_restored(tmp_path):
    state = {"a": torch.tensor([1, 65535], dtype=torch.uint16), "b": torch.tensor([3], dtype=torch.uint64)}
    torch.save(state, tmp_path / "weights.pt")

    assert all(torch.equal(read_item(tmp_path / "weights.pt")[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(None, 1.0), ("ema.model", 2.0)],
)
def test_state_dict_within_a_checkpoint_is_found(tmp_path, key, expected):
    value = {"epoch": 3, "model": {"w": torch.ones(1)}, "ema": {"model": {"w": torch.ones(1) * 2}}}
    torch.save(value, tmp_path / "checkpoint.pt")

    assert read_item(tmp_path / "checkpoint.pt", key=key)["w"].item() == expected


def test_missing_key_is_an_error_with_the_entries_found(tmp_path):
    torch.save({"epoch": 3, "net": {"w": torch.ones(1)}}, tmp_path / "checkpoint.pt")

    for key, message in (
        (None, "has no state dict; found the entries epoch, net. Set key"),
        ("x", "no entry 'x'"),
    ):
        with pytest.raises(RecordError, match=message):
            read_state_dict(tmp_path / "checkpoint.pt", key=key)


@pytest.mark.parametrize("zipped", [True, False])
def test_corrupt_file_is_an_error_or_loads(tmp_path, zipped):
    path = tmp_path / "weights.pt"
    torch.save(torch.nn.Linear(3, 3).state_dict(), path, _use_new_zipfile_serialization=zipped)
    intact = path.read_bytes()
    generator = np.random.default_rng(1)

    for _ in range(300):
        damaged = bytearray(intact)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(damaged))] = generator.integers(256)
        path.write_bytes(damaged[: generator.integers(len(damaged)) if generator.random() < 0.3 else None])
        with suppress(RecordError):
            read_item(path)


@pytest.mark.parametrize(
    "value",
    [{2**70: torch.ones(1)}, {(1,): torch.ones(1)}, [torch.ones(1)], 3],
    ids=["large key", "tuple as key", "list", "number"],
)
def test_file_without_a_state_dict_is_an_error(tmp_path, value):
    torch.save(value, tmp_path / "weights.pt")

    with pytest.raises(RecordError, match=r"weights.pt (has no state dict|is not an intact file)"):
        read_item(tmp_path / "weights.pt")


def test_tensor_beyond_its_storage_is_an_error(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"w": torch.ones(200)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"K\xc8\x85", b"M\xff\xff\x85"))

    with pytest.raises(RecordError, match=r"w: its shape \[65535\] exceeds its storage"):
        read_item(path)


def test_file_with_a_tensor_that_expand_made_is_refused_with_a_remedy(tmp_path):
    """Its elements share memory, so a file of a few bytes could declare a tensor of any size."""
    torch.save({"w": torch.ones(3).expand(5000, 3)}, tmp_path / "weights.pt")

    with pytest.raises(RecordError, match=r"w: its shape \[5000, 3\] exceeds its storage. Save tensor.cont"):
        read_item(tmp_path / "weights.pt")


def test_strict_load_fails_with_every_kind_of_name(dataset, pretrained, tmp_path):
    path = tmp_path / "weights.pt"
    pretrained["head.weight"] = torch.ones(5, 4)
    pretrained["extra.weight"] = pretrained.pop("head.bias")
    torch.save(pretrained, path)

    with pytest.raises(CheckpointError) as error:
        build(dataset, tmp_path / "learner", path, **RENAME)

    for each in (
        "missing: head.bias",
        "unexpected: extra.weight",
        "of another shape: head.weight is F32 [5, 4], expected F32 [10, 4]",
        "prefix, rename, only, skip or strict: false",
    ):
        assert each in str(error.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strict": False}, {"mismatched": 1, "unexpected": 0, "skipped": 0}),
        ({"skip": ["^head"]}, {"mismatched": 0, "unexpected": 0, "skipped": 2}),
        ({"only": ["^blocks", "^stem"]}, {"mismatched": 0, "unexpected": 0, "skipped": 2}),
    ],
)
def test_options_load_the_part_that_fits(dataset, pretrained, tmp_path, capsys, options, expected):
    path = tmp_path / "weights.pt"
    pretrained["head.weight"] = torch.ones(5, 4)
    torch.save(pretrained, path)

    learner = build(dataset, tmp_path / "learner", path, **RENAME, **options)

    report = json.loads((learner / "weights.json").read_text())
    assert {key: len(report[key]) for key in expected} == expected
    assert "head.weight" in report["initial"]
    assert len(report["loaded"]) + len(report["initial"]) == 64
    assert f"loaded: {len(report['loaded'])}" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["burn", "torch"])
def test_layout_decides_about_the_axes_of_a_square_matrix(layout, dataset, tmp_path):
    weight = torch.arange(100.0).reshape(10, 10)
    save_safetensors({"linear.weight": weight}, tmp_path / "a.safetensors")
    checkpoint = {"path": str(tmp_path / "a.safetensors"), "layout": layout}
    config = BuildLearnerConfig.model_validate({"model": f"{__name__}:Square", "checkpoint": checkpoint})

    build_learner(
        config, BuildLearnerPaths(dataset / "dataset.json", tmp_path / "learner"), tmp_path / "a.safetensors"
    )

    recorded = read_item(tmp_path / "learner/checkpoint/model-0.mpk.gz")["linear"]["weight"]["param"]
    assert torch.equal(recorded, weight if layout == "burn" else weight.T)


def test_prefix_selects_the_names_that_begin_with_it():
    model = torch.nn.Linear(2, 2)
    item = {"net": {"weight": torch.ones(2, 2), "bias": torch.ones(2)}, "loss": {"weight": torch.ones(3)}}

    loaded = load_into(model, item, layout="torch", selection=Selection(prefix="net."))

    assert loaded.skipped == ["loss.weight"]
    assert model.weight.sum().item() == 4
    with pytest.raises(RecordError, match=r"no name begins with the prefix 'nte.'; found 'net.weight'"):
        load_into(model, item, selection=Selection(prefix="nte."))
    with pytest.raises(RecordError, match="are both renamed to 'w'"):
        load_into(model, item, selection=Selection(rename=((".*weight", "w"),)))


def test_record_of_burn_is_loaded_with_options(dataset, tmp_path):
    path = save_file(ResNetLike((1, 8, 8), 10), tmp_path / "model", DefaultRecorder())

    learner = build(dataset, tmp_path / "learner", path, skip=[r"^blocks\.0\.norm\."])

    assert json.loads((learner / "weights.json").read_text())["initial"] == [
        "blocks.0.norm.weight",
        "blocks.0.norm.bias",
    ]


def write_shards(folder, state, **changes):
    folder.mkdir()
    places = {}
    for number, (name, tensor) in enumerate(state.items()):
        shard = f"model-{number}.safetensors"
        save_safetensors({name: tensor}, folder / shard)
        places[name] = shard
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places | changes}))
    return index


def test_shards_of_safetensors_are_loaded_through_their_index(dataset, tmp_path):
    expected = ResNetLike((1, 8, 8), 10).state_dict()
    index = write_shards(tmp_path / "weights", expected)

    found = weights_in(build(dataset, tmp_path / "learner", index))

    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (tmp_path / "learner/weights.json").exists()


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("../model-0.safetensors", "must be the name of a .safetensors file in the same folder"),
        ("/etc/x.safetensors", "must be the name of a .safetensors file in the same folder"),
        ("model-9.safetensors", "no record at"),
        ("model-1.safetensors", "lacks 'a', which model.safetensors.index.json expects there"),
        (3, "must have a weight_map"),
    ],
)
def test_index_with_a_wrong_shard_is_an_error(tmp_path, shard, message):
    index = write_shards(tmp_path / "weights", {"a": torch.ones(1), "b": torch.ones(1)}, a=shard)

    with pytest.raises(RecordError, match=message):
        read_item(index)


def test_options_apply_to_a_file_of_weights_only():
    with pytest.raises(ValidationError, match="instead of rev, which has no skip, strict"):
        CheckpointConfig(rev="a" * 40, epoch=1, skip=["x"], strict=False)


@pytest.mark.parametrize("key", OF_WEIGHTS)
def test_readme_documents_each_option(key):
    assert f"`{key}`" in (Path(__file__).parents[1] / "stages/params/README.md").read_text()


def test_index_and_its_shards_are_data_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "weights", {"a": torch.ones(1), "b": torch.ones(1)})
    index = "weights/model.safetensors.index.json"

    found = find_data_files(BuildLearnerConfig(checkpoint=CheckpointConfig(path=index)))

    names = {"model.safetensors.index.json", "model-0.safetensors", "model-1.safetensors"}
    assert {path.as_posix() for path in found} == {f"weights/{name}" for name in names}


def test_options_do_not_apply_to_a_checkpoint_of_this_project(dataset, tmp_path):
    folder = tmp_path / "other"
    config = BuildLearnerConfig.model_validate({"model": MODEL})
    build_learner(config, BuildLearnerPaths(dataset / "dataset.json", folder))

    with pytest.raises(CheckpointError, match="only a file of weights has prefix"):
        build(dataset, tmp_path / "learner", folder, prefix="x.")
