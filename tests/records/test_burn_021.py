"""Records of modules and schedules as Burn 0.21 reads and writes them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from burn_files import BURN_022, needs_files

from stages.optim import Composed, Cosine, Linear, Noam, Scheduler, Step
from stages.records import (
    BinFileRecorder,
    NamedMpkFileRecorder,
    PrettyJsonFileRecorder,
    formats,
    record_of,
    to_021,
)
from stages.records.named_records import build_metadata, pack_record
from stages.records.precision import FullPrecision
from stages.records.record_tree import RawTensor, Record

MASK = RawTensor.of("Bool", (2,), np.array([0, 1], np.uint8))


@pytest.mark.parametrize(("version", "dtype"), [("0.21.0", {"Bool": "Native"}), ("0.20.1", "Bool")])
@pytest.mark.parametrize("recorder", [NamedMpkFileRecorder(), PrettyJsonFileRecorder()], ids=["mpk", "json"])
def test_bool_tensor_names_its_storage_since_021(recorder, version, dtype, tmp_path):
    metadata = replace(build_metadata(recorder.form.type_name, FullPrecision), version=version)
    record, path = Record({"mask": MASK}, metadata), tmp_path / f"a{recorder.suffix}"

    formats.write(record, path, recorder.form)

    assert pack_record(record)["item"]["mask"]["dtype"] == dtype
    assert (b"Native" in path.read_bytes()) == (version == "0.21.0")
    assert recorder.load(path)["mask"].tolist() == [False, True]


@pytest.mark.parametrize(("version", "size"), [("0.21.0", 5), ("0.20.1", 8)])
def test_array_of_constants_is_one_byte_of_bincode_since_021(version, size, tmp_path):
    form, convolution = BinFileRecorder().form, torch.nn.Conv2d(1, 1, 1, bias=False)
    metadata = replace(build_metadata(form.type_name, FullPrecision), version=version)
    constants = {
        name: value for name, value in record_of(convolution).items() if name not in ("weight", "bias")
    }
    path = tmp_path / "a.bin"

    formats.write(Record(constants, metadata), path, form)

    formats.write(Record({}, metadata), tmp_path / "empty.bin", form)
    assert path.stat().st_size - (tmp_path / "empty.bin").stat().st_size == size
    assert formats.read(path, like=constants).item == constants


def test_new_step_schedule_is_a_signed_number_of_bincode(tmp_path):
    state = to_021(Scheduler(0.5, Step(step_size=3)).burn_state())

    path = BinFileRecorder().record(state, tmp_path / "a")

    assert path.read_bytes()[-1] == 1  # the zigzag of -1; Burn reads an unsigned 2**64 - 1 as another number
    assert BinFileRecorder().load(path, state) == -1


def test_parts_of_a_composed_schedule_are_cases_of_an_enum_of_bincode(tmp_path):
    parts = (Linear(final=0.1, num_iters=9), Cosine(num_iters=9), Noam())
    state = to_021(Scheduler(0.5, Composed(schedulers=parts, reduction="sum")).burn_state())

    path = BinFileRecorder().record(state, tmp_path / "a")

    cases = b"\x03" + b"\x00\x0a" + b"\x01\xfd" + b"\xff" * 8 + b"\x03\x00"
    assert path.read_bytes().endswith(cases)
    assert BinFileRecorder().load(path, state) == state


RULES = {
    "linear": (0.01, Linear(final=0.001, num_iters=60)),
    "cosine": (0.01, Cosine(min=0.0005, num_iters=30)),
    "noam": (0.5, Noam(warmup_steps=30, model_size=64)),
    "step": (0.01, Step(step_size=7, gamma=0.5)),
}


@needs_files
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("recorder", [BinFileRecorder(), NamedMpkFileRecorder()], ids=["bin", "mpk"])
def test_schedule_has_the_bytes_of_burn(name, recorder, tmp_path):
    scheduler = Scheduler(*RULES[name])
    scheduler.follow("0.21", accumulates=False)
    for _ in range(40):
        scheduler.step()

    path = recorder.record(scheduler.burn_state(), tmp_path / "scheduler")

    of_burn = BURN_022 / f"burn-0.21/schedules/{name}/scheduler-40{recorder.suffix}"
    assert path.read_bytes() == of_burn.read_bytes()


@needs_files
def test_modules_of_burn_are_written_again_byte_for_byte(tmp_path):
    paths = [*BURN_022.glob("modules/gen21/*.mpk"), *BURN_022.glob("modules/gen21/*.json")]

    for number, path in enumerate(paths):
        form = formats.find_format(path)
        again = tmp_path / f"{number}{form.suffix}"
        formats.write(formats.read(path, form), again, form)
        assert again.read_bytes() == path.read_bytes(), path
    assert len(paths) == 6
