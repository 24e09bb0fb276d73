"""Modules of Burn have its outputs, and its optimizers continue to its parameters, or they are refused."""

import pytest
from burn_files import BURN_022, import_file, needs_files

from stages.contracts.errors import RecordError
from stages.records import (
    BinFileRecorder,
    load_burn_optimizer,
    load_into,
    optimizer_record,
    read_item,
    record_of,
)

pytestmark = needs_files
MODULES = [
    "gen21/cnn.bin",
    "gen21/cnn.json",
    "gen21/cnn.mpk",
    "gen21/conv2d.bin",
    "gen21/conv2d.mpk",
    "gen21/lstm.mpk",
    "gen21/mixed.mpk",
    "gen21/rnn_relu.mpk",
    "gen22/cnn.bpk",
    "gen22/lstm.bpk",
    "gen22/nested.bpk",
]


@pytest.fixture(scope="module")
def cases():
    return import_file(BURN_022 / "modules/cases.py")


@pytest.mark.parametrize("name", MODULES)
def test_module_of_burn_has_its_outputs(name, cases):
    path = BURN_022 / "modules" / name
    module = cases.make(cases.CASES[path.stem][0], seed=1)

    load_into(module, read_item(path, record_of(module) if path.suffix == ".bin" else None))

    assert cases.gap(cases.run(path.stem, module), cases.read_out(path.with_suffix(".out"))) < 1e-5


def test_every_module_of_burn_is_compared_or_refused():
    refused = {"gen22/mha.ptadapter.safetensors"}
    paths = {str(path.relative_to(BURN_022 / "modules")) for path in BURN_022.glob("modules/gen*/*.*")}

    assert {name for name in paths if not name.endswith(".out")} == {*MODULES, *refused}


def test_modules_of_which_an_axis_or_an_adapter_is_unknown_are_refused(cases):
    attention = cases.make(cases.CASES["mha"][0], seed=1)
    nested = cases.make(cases.CASES["nested"][0], seed=1)

    with pytest.raises(RecordError, match="Burn's axes or PyTorch's"):
        load_into(attention, read_item(BURN_022 / "modules/gen22/mha.ptadapter.safetensors"))
    with pytest.raises(RecordError, match=r"unexpected: .*_lora"):
        load_into(nested, read_item(BURN_022 / "odd/nested.lora.bpk"))


@pytest.mark.parametrize("suffix", [".mpk", ".bin"])
@pytest.mark.parametrize("name", ["adam", "sgd_mom", "rms", "muon"])
def test_optimizer_of_burn_021_continues_to_its_parameters(name, suffix):
    check, folder = import_file(BURN_022 / "check.py"), BURN_022 / "burn-0.21" / name
    examples = []  # of which bincode needs one
    check.run(
        name, 1, 25, at_save=lambda model, optimizer: examples.append(optimizer_record(optimizer, model))
    )

    def start(model, optimizer):
        item = read_item(folder / f"model-25{suffix}", record_of(model))
        load_into(model, item, layout="burn")
        load_burn_optimizer(optimizer, model, read_item(folder / f"optim-25{suffix}", examples[0]), item)

    continued = check.run(name, 26, 50, start=start)

    tolerance = 3e-2 if name == "muon" else 3e-5  # PyTorch's Muon computes in bfloat16
    assert check.distance(continued, folder / "straight.txt") <= tolerance


@pytest.mark.parametrize("name", ["gen21/cnn.bin", "gen21/conv2d.bin"])
def test_bincode_of_a_module_has_the_bytes_of_burn(name, cases, tmp_path):
    path = BURN_022 / "modules" / name
    module = cases.make(cases.CASES[path.stem][0], seed=1)

    again = BinFileRecorder().record(read_item(path, record_of(module)), tmp_path / "again")

    assert again.read_bytes() == path.read_bytes()
