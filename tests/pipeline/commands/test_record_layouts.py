"""Files of tensors have the names and axes of Burn or of PyTorch, and no command or reader confuses them."""

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from long_tests import long
from torch import nn
from typer.testing import CliRunner

from pipeline.cli import app
from stages.contracts.errors import RecordError, StageError
from stages.learner import LearnerSpec
from stages.models import Mlp
from stages.models.config import MlpConfig
from stages.optim import Adam, Linear, Scheduler
from stages.params.save_model_params import SaveModelConfig
from stages.records import (
    BinFileRecorder,
    BurnpackRecorder,
    DefaultRecorder,
    NamedMpkFileRecorder,
    PrettyJsonFileRecorder,
    SafetensorsRecorder,
    load_file,
    load_into,
    read_item,
    record_of,
    save_file,
    write_state_dict,
)
from stages.records.formats import FORMATS

RECORDS = [name for name in FORMATS if name != "safetensors"]
NAMED_RECORDS = [name for name in RECORDS if FORMATS[name].has_names]


def learner(*arguments):
    """Return the exit code and the output, or the error, of ``learner records``."""
    done = CliRunner().invoke(app, ["records", *map(str, arguments)])
    if isinstance(done.exception, StageError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def mlp(seed=1):
    """Return a model whose two weights are square, so that either axes fit."""
    torch.manual_seed(seed)
    return Mlp((4,), 4, hidden_sizes=[4])


def assert_equal_state(first, second):
    torch.testing.assert_close(dict(first), dict(second), rtol=0, atol=0)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with learner.json, a record, and the same weights with PyTorch's names and axes."""
    LearnerSpec(
        model=MlpConfig(kind="mlp", hidden_sizes=[4]),
        optimizer=Adam(),
        schedule={"kind": "constant"},
        input_shape=(4,),
        num_classes=4,
        num_outputs=4,
    ).write(tmp_path)
    save_file(mlp(), tmp_path / "model", DefaultRecorder())
    write_state_dict(mlp().state_dict(), tmp_path / "torch.safetensors")
    return tmp_path


def metadata_of(path):
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata()


def test_matrix_of_a_record_needs_a_layout_for_safetensors(folder):
    code, text = learner("convert", folder / "model.mpk.gz", folder / "out.safetensors")

    assert code == 2
    assert "layers.0.weight is a matrix" in text
    assert "--layout burn" in text
    assert "--layout torch" in text
    assert not (folder / "out.safetensors").exists()


@pytest.mark.parametrize("name", NAMED_RECORDS)
def test_layout_burn_keeps_the_record_and_states_it(name, folder):
    source = folder / f"record{FORMATS[name].suffix}"
    back = folder / f"back{FORMATS[name].suffix}"
    assert learner("convert", folder / "model.mpk.gz", source) == (0, "")

    assert learner("convert", source, folder / "burn.safetensors", "--layout", "burn") == (0, "")
    assert learner("convert", folder / "burn.safetensors", back) == (0, "")

    assert metadata_of(folder / "burn.safetensors")["format"] == "burn"
    assert back.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("source", ["model.mpk.gz", "burn.safetensors"])
def test_layout_torch_needs_the_model_and_writes_what_pytorch_loads(source, folder):
    learner("convert", folder / "model.mpk.gz", folder / "burn.safetensors", "--layout", "burn")
    arguments = ("convert", folder / source, folder / "out.safetensors", "--layout", "torch")

    code, text = learner(*arguments)
    assert code == 1
    assert "has those of Burn. Set --learner" in text
    assert learner(*arguments, "--learner", folder) == (0, "")

    assert (folder / "out.safetensors").read_bytes() == (folder / "torch.safetensors").read_bytes()
    assert metadata_of(folder / "out.safetensors")["format"] == "pt"
    assert_equal_state(safetensors.torch.load_file(folder / "out.safetensors"), mlp().state_dict())


def test_conversion_by_a_model_that_is_not_built_in_is_refused_with_what_to_do(folder):
    description = folder / "learner.json"
    description.write_text(description.read_text().replace('"mlp"', '"mine:Net"'))
    arguments = ("convert", folder / "model.mpk.gz", folder / "out.safetensors", "--layout", "torch")

    code, text = learner(*arguments, "--learner", folder)

    assert code == 1
    assert (
        "mine:Net, which is not built in. `learner records` runs only built-in code. Set save_model.exp"
        in text
    )


@pytest.mark.parametrize("name", RECORDS)
def test_file_of_pytorch_becomes_a_record_only_through_the_model(name, folder):
    target = folder / f"out{FORMATS[name].suffix}"
    expected = folder / f"expected{FORMATS[name].suffix}"
    if FORMATS[name].has_names:
        code, text = learner("convert", folder / "torch.safetensors", target)
        assert (code, "has those of PyTorch. Set --learner" in text) == (1, True)

    assert learner("convert", folder / "torch.safetensors", target, "--learner", folder) == (0, "")

    learner("convert", folder / "model.mpk.gz", expected, "--learner", folder)
    assert target.read_bytes() == expected.read_bytes()


def test_file_that_states_no_layout_becomes_no_record(folder):
    state = {name: tensor.numpy() for name, tensor in mlp().state_dict().items()}
    safetensors.numpy.save_file(state, folder / "unknown.safetensors")

    for arguments in ((), ("--learner", folder)):  # each weight is square
        code, text = learner("convert", folder / "unknown.safetensors", folder / "out.mpk", *arguments)
        assert code == 1
        assert "Set --learner" in text or "could have Burn's axes or PyTorch's" in text
    assert learner("convert", folder / "unknown.safetensors", folder / "copy.safetensors") == (0, "")
    assert not (folder / "out.mpk").exists()


def test_precision_of_a_file_of_pytorch_changes_without_its_layout(folder):
    half = folder / "half.safetensors"

    assert learner("convert", folder / "torch.safetensors", half, "--precision", "half")[0] == 0

    assert metadata_of(half).keys() == metadata_of(folder / "torch.safetensors").keys()
    assert safetensors.torch.load_file(half)["layers.0.weight"].dtype == torch.float16
    loaded = load_into(mlp(2), read_item(half)).state
    torch.testing.assert_close(loaded, mlp().half().state_dict(), rtol=0, atol=0)


def test_other_combinations_are_refused(folder):
    learner("convert", folder / "model.mpk.gz", folder / "burn.safetensors", "--layout", "burn")

    code, text = learner("convert", folder / "model.mpk.gz", folder / "out.bpk", "--layout", "torch")
    assert (code, ".bpk files have Burn's axes" in text) == (2, True)
    for record in ("burn.safetensors", "model.mpk.gz"):
        code, text = learner("diff", folder / record, folder / "torch.safetensors")
        assert (code, "the axes of different frameworks" in text) == (1, True)
    assert learner("diff", folder / "model.mpk.gz", folder / "burn.safetensors") == (0, "equal\n")


FILES = {"burn": lambda path: save_file(mlp(), path, SafetensorsRecorder()), "torch": lambda path: path}


@pytest.mark.parametrize("layout", FILES)
def test_readers_use_the_layout_that_a_file_states(layout, folder):
    path = FILES[layout](folder / f"{layout}.safetensors")

    by_item, by_file = mlp(2), mlp(3)
    load_into(by_item, read_item(path))
    load_file(by_file, path, SafetensorsRecorder())

    assert_equal_state(by_item.state_dict(), mlp().state_dict())
    assert_equal_state(by_file.state_dict(), mlp().state_dict())


@pytest.mark.parametrize(
    "recorder",
    [
        DefaultRecorder(),
        BinFileRecorder(),
        BurnpackRecorder(),
        PrettyJsonFileRecorder(),
        SafetensorsRecorder(),
    ],
)
def test_tensors_of_pytorch_are_not_recorded(recorder, folder):
    with pytest.raises(RecordError, match="have PyTorch's names and axes, and a record has Burn's"):
        recorder.record(read_item(folder / "torch.safetensors"), folder / "out")

    model = mlp(2)
    load_into(model, read_item(folder / "torch.safetensors"))
    recorder.record(record_of(model), folder / "out")


NOTE = "note: save_model.recorder: safetensors writes Burn's names and axes"


def test_note_appears_if_pytorch_cannot_load_the_model():
    assert SaveModelConfig().note is None
    assert SaveModelConfig(recorder="safetensors", exports=["safetensors"]).note is None
    assert SaveModelConfig(recorder="safetensors").note.startswith(NOTE)


@pytest.mark.parametrize("command", [["check"], long(["stage", "save-model"])], ids=" ".join)
def test_commands_print_the_note(command, finished):
    finished.edit("params.yaml", "  recorder: default\n  exports", "  recorder: safetensors\n  exports")
    finished.edit("dvc.yaml", "artifacts/model.mpk.gz", "artifacts/model.safetensors")
    finished.call("stage", "create-artifact-dir").ok()

    printed = finished.call(*command).ok()

    assert NOTE in printed


class Attention(nn.Module):
    """A module whose names in Burn are others than in PyTorch."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)


def test_square_tensors_under_names_of_burn_need_a_layout(tmp_path):
    bare = {f"attention.{name}.weight": torch.rand(8, 8) for name in ("query", "key", "value", "output")}
    bare |= {f"attention.{name}.bias": torch.rand(8) for name in ("query", "key", "value", "output")}
    safetensors.torch.save_file(bare, tmp_path / "adapted.safetensors", {"producer": "burn"})
    item, model = read_item(tmp_path / "adapted.safetensors"), Attention()

    with pytest.raises(RecordError, match=r"Burn's axes or PyTorch's: attention\.key\.weight, .* fit both"):
        load_into(model, item)

    load_into(model, item, layout="burn")
    torch.testing.assert_close(model.attention.out_proj.weight.T, bare["attention.output.weight"])


def test_schedule_converts_to_burnpack_with_the_learner_that_has_its_kind(folder):
    schedule = Linear(final=0.1, num_iters=9)
    spec = LearnerSpec.read(folder).model_copy(update={"schedule": schedule})
    spec.write(folder)
    scheduler = Scheduler(0.5, schedule)
    scheduler.step()
    for recorder in (NamedMpkFileRecorder(), BurnpackRecorder()):
        recorder.record(scheduler.burn_state(), folder / "scheduler-1")

    code, text = learner("convert", folder / "scheduler-1.mpk", folder / "out.bpk")
    assert (code, "does not state the kind of its schedule" in text) == (1, True)
    assert learner("convert", folder / "scheduler-1.mpk", folder / "out.bpk", "--learner", folder) == (0, "")

    assert (folder / "out.bpk").read_bytes() == (folder / "scheduler-1.bpk").read_bytes()
