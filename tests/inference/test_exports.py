"""Programs of a trained model are run before they are kept, and have its outputs and its metrics."""

import json
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from long_tests import long
from small_runs import prepare, train

from stages import load_model
from stages.contracts.errors import StageError
from stages.contracts.outputs import ClassificationOutput
from stages.data import read_info
from stages.inference.exports import model_card, write_exports
from stages.inference.programs import TrainedRun, _first_line, _record_arguments, _trace, export_program
from stages.models import ClassificationStep
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.records import DefaultRecorder, record_of
from stages.runs import FileCheckpointer


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(1).normal(5, 3, (60, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, inputs):
    """Return the artifact directory of a run on numbers, with all exports."""
    folder = tmp_path_factory.mktemp("run")
    np.savez(folder / "data.npz", inputs=inputs, targets=np.arange(60) % 3)
    source = {"kind": "npz", "path": str(folder / "data.npz")}
    options = {"exports": ["onnx", "pt2", "model_card", "safetensors"], "preprocess": True, "license": "mit"}
    return train(folder, source, save_options=options)


@pytest.fixture
def run(directory):
    config = json.loads((directory / "config.json").read_bytes())
    model = load_model(directory).model
    return TrainedRun(model, FitConfig.model_validate(config["fit"]), directory.parent / "prepared")


def test_programs_take_the_samples_of_the_source_and_have_the_outputs_of_the_model(directory, inputs):
    session = onnxruntime.InferenceSession(directory / "exports/model.onnx")
    program = torch.export.load(directory / "exports/model.pt2").module()

    for count in (1, 60):
        samples = torch.tensor(inputs[:count])
        expected = load_model(directory)(samples)
        (output,) = session.run(None, {session.get_inputs()[0].name: inputs[:count]})
        torch.testing.assert_close(torch.tensor(output), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(program(samples), expected, rtol=1e-4, atol=1e-4)


def test_programs_have_no_path_of_the_code_and_no_build_of_torch(directory):
    content = (directory / "exports/model.onnx").read_bytes()
    with zipfile.ZipFile(directory / "exports/model.pt2") as archive:
        content += b"".join(archive.read(name) for name in archive.namelist())
    for text in ("stages/", "site-packages", torch.__version__.partition("+")[0] + "+"):
        assert text.encode() not in content


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_program_is_written_with_equal_bytes_again(kind, directory, run, tmp_path):
    export_program(kind, run, tmp_path / "again", preprocess=True)

    assert (tmp_path / "again").read_bytes() == (directory / f"exports/model.{kind}").read_bytes()


class Net(ClassificationStep, torch.nn.Module):
    """A model of the three inputs; *change* is applied to its output."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = torch.nn.Linear(3, 3), change

    def forward(self, inputs):
        return self.change(self.linear(inputs))


def differ_if_exported(logits):
    return logits + 0.001 if torch.compiler.is_exporting() else logits


def branch_on_a_value(logits):
    return logits if logits.sum() > 0 else -logits


def call_numpy(logits):
    return torch.tensor(np.tanh(logits.tolist()), dtype=torch.float32)


DIFFERS = "an output of the program differs from that of the model by 0.001; at most"
BRANCHES = "torch.export cannot trace the model: Could not guard on data-dependent"
CALLS = "torch.export cannot trace the model: "


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("onnx", differ_if_exported, DIFFERS),
        ("pt2", branch_on_a_value, BRANCHES),
        ("pt2", call_numpy, CALLS),
        long("pt2", differ_if_exported, DIFFERS),
        long("onnx", branch_on_a_value, BRANCHES),
        long("onnx", call_numpy, CALLS),
    ],
)
def test_program_with_other_outputs_is_refused(run, tmp_path, kind, change, message):
    with pytest.raises(StageError) as refused:
        export_program(kind, replace(run, model=Net(change)), tmp_path / "model", preprocess=False)

    assert str(refused.value).startswith(f"save_model.exports: {kind}: ")
    assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operator", ["<OpOverload(op='aten.sort')>", "aten.sort"])
def test_first_line_of_an_error_is_that_of_the_operator(operator):
    error = RuntimeError(f"Failed to export the model.\n\n  No function for {operator}\nSee the report")

    assert _first_line(error) == f"No function for {operator}"
    assert _first_line(ValueError("\nWrong\nvalue")) == "Wrong"
    assert _first_line(KeyError()) == "KeyError()"


def test_program_with_another_weight_is_refused(run, tmp_path):
    with pytest.raises(StageError, match="pt2: test split, batch 1: an output of the program differs from"):
        export_program("pt2", replace(run, model=OtherWeight()), tmp_path / "model", preprocess=False)


class OtherWeight(Net):
    """A model one of whose weights is larger in an export."""

    def __init__(self):
        super().__init__(lambda logits: logits)

    def forward(self, inputs):
        weight = self.linear.weight
        factor = 1 + 0.01 * torch.eye(3)[0] if torch.compiler.is_exporting() else 1.0
        return torch.nn.functional.linear(inputs, weight * factor, self.linear.bias)


def test_program_with_another_metric_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("stages.inference.programs.OUTPUT_TOLERANCE", 0.1)
    with pytest.raises(StageError, match="test split: Loss is .* with the program, and .* with the model"):
        export_program("pt2", replace(run, model=Shifted()), tmp_path / "model", preprocess=False)


class Shifted(Net):
    """A model whose first logit is larger in an export."""

    def __init__(self):
        super().__init__(lambda logits: logits)

    def forward(self, inputs):
        logits = super().forward(inputs)
        shift = torch.tensor([0.01, 0.0, 0.0])
        return logits + shift if torch.compiler.is_exporting() else logits


@pytest.fixture(scope="module")
def directories(tmp_path_factory, directory):
    """Return the directories of a run with a test split, and of one without, by the split of programs."""
    source = {"kind": "npz", "path": str(directory.parent / "data.npz")}
    without = train(tmp_path_factory.mktemp("valid"), source, test_fraction=0.0)
    return {"test": directory, "valid": without}


def export_changed(directory, exports, **fit):
    """Export the model of the run in *directory* with another weight, as if it had been run with *fit*."""
    resolved = json.loads((directory / "config.json").read_bytes())
    resolved["fit"] |= fit
    chosen = FileCheckpointer(directory / "checkpoint", DefaultRecorder()).restore(1, parts=["model"])
    model = load_model(directory).model
    with torch.no_grad():
        next(model.parameters())[0, 0] += 0.01
    files = (directory / name for name in ("checkpoint", "config.json", "model.mpk.gz"))
    paths = SaveModelPaths(
        *files, exports, directory / "learner", directory.parent / "prepared", directory / "test/split"
    )
    config = SaveModelConfig.model_validate(resolved["save_model"] | {"exports": ["pt2"]})
    return write_exports(config, replace(chosen, model=record_of(model)), resolved, paths)


@pytest.mark.parametrize("split", ["test", "valid"])
def test_program_without_the_recorded_metrics_is_refused(split, directories, tmp_path):
    message = f"pt2: {split} split: Loss is .* with the program, and .* in the records of the run"
    with pytest.raises(StageError, match=message):
        export_changed(directories[split], tmp_path)


@pytest.mark.parametrize(
    ("split", "fit"),
    [
        ("test", {"precision": "bf16"}),
        ("valid", {"limit_batches": 1}),
        long("test", {"device": "cuda"}),
        long("valid", {"recorder": "compact"}),
        long("valid", {"averaging": {"kind": "swa", "start_epoch": 1}}),
        long("valid", {"hooks": ["frozen_norms"]}),
    ],
)
def test_program_is_not_compared_with_metrics_of_another_computation(split, fit, directories, tmp_path):
    [path] = export_changed(directories[split], tmp_path, **fit)

    assert path.exists()


class Words(ClassificationStep, torch.nn.Module):
    """A model of sequences of any length."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2)

    def forward(self, ids, mask):
        return self.linear((self.embedding(ids) * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))

    def forward_classification(self, batch):
        logits = self(batch.inputs, batch.mask)
        return ClassificationOutput(self.loss(logits, batch.targets), logits, batch.targets)


@pytest.mark.parametrize("kind", [long("onnx"), "pt2"])
def test_program_takes_sequences_of_any_length(tmp_path, kind):
    lengths = np.arange(1, 41) % 6 + 1
    rows = np.where(np.arange(6) < lengths[:, None], 1 + np.arange(40)[:, None] % 8, 0)
    np.savez(tmp_path / "data.npz", inputs=rows, targets=np.arange(40) % 2)
    prepare(tmp_path / "prepared", {"kind": "npz", "path": str(tmp_path / "data.npz")})
    fit = FitConfig.model_validate({"batcher": "pad", "batch_size": 3, "num_workers": 0, "device": "cpu"})

    export_program(
        kind, TrainedRun(Words(), fit, tmp_path / "prepared"), tmp_path / "model", preprocess=False
    )

    assert (tmp_path / "model").stat().st_size > 100


def test_program_takes_a_length_that_neither_the_first_nor_the_last_batch_has():
    batches = [
        SimpleNamespace(inputs=ids, mask=torch.ones_like(ids), targets=torch.tensor([0]))
        for ids in (torch.randint(1, 9, (1, length)) for length in (6, 4, 6))
    ]
    model = Words()

    program = _trace(model, *_record_arguments(model, batches), "pt2").module()

    for ids in (*(batch.inputs for batch in batches), torch.ones(3, 5, dtype=torch.int64)):
        mask = torch.ones_like(ids)
        torch.testing.assert_close(program(ids, mask), model(ids, mask))


def test_program_of_padded_rows_can_be_decomposed_as_for_onnx():
    """`PadBatcher` cuts rows of one array to the longest one of a batch, which leaves gaps in memory."""
    rows = torch.ones(3, 6, dtype=torch.int64)
    batches = [
        SimpleNamespace(inputs=rows[:, :length], mask=rows[:, :length], targets=torch.zeros(3).long())
        for length in (4, 5)
    ]
    model = Words()

    program = _trace(model, *_record_arguments(model, batches), "onnx").run_decompositions().module()

    torch.testing.assert_close(program(rows, rows), model(rows, rows))


class Points:
    """A dataset of points in two classes."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.full(3, index, np.float32), index % 2


def test_program_is_verified_on_samples_that_are_read_when_needed(tmp_path):
    source = {"kind": "dataset", "factory": f"{__name__}:Points", "lazy": True}

    directory = train(tmp_path, source, save_options={"exports": ["pt2"]})

    assert (directory / "exports/model.pt2").exists()


def test_card_has_the_metadata_of_the_hub_and_the_recorded_metrics(directory):
    card = ModelCard((directory / "exports/README.md").read_text(), ignore_metadata_errors=False)
    measured = json.loads((directory / "test/split/metrics.json").read_bytes())["test"]
    results = {
        result.metric_name: result.metric_value
        for result in card.data.eval_results
        if result.dataset_split == "test"
    }

    assert (card.data.license, card.data.library_name) == ("mit", "pytorch")
    assert results == measured
    manifest = json.loads((directory / "exports/manifest.json").read_bytes())["files"]
    for name in ("model.onnx", "model.pt2", "model.safetensors"):
        assert manifest[name]["sha256"] in card.text


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        ({"input_shape": (3, 8, 8)}, "image-classification"),
        ({"input_shape": (2, 8, 8)}, None),
        ({"feature_names": ("a", "b", "c")}, "tabular-classification"),
    ],
)
def test_card_names_the_task_if_the_hub_has_it(directory, changes, task):
    resolved = json.loads((directory / "config.json").read_bytes())
    info = read_info(directory / "exports/dataset.json").model_copy(update=changes)

    card = ModelCard(model_card(resolved, info, {"test": {"Loss": 0.5}}, []), ignore_metadata_errors=False)

    assert card.data.get("pipeline_tag") == task
    assert (card.data.model_name, card.data.eval_results[0].metric_name) == ("mlp", "Loss")
