"""Damaged files of torch.save are refused, or read as tensors; none ends in another exception."""

import io
import random
import tracemalloc
import zipfile
from collections import OrderedDict

import pytest
import torch
from fuzz_mutations import mutated
from long_tests import long

from stages.contracts.errors import RecordError
from stages.records.torch_files import read_state_dict

MEMORY = 64 << 20


def make_state():
    """Return a state dict with views, a shared storage and several dtypes, beside other values."""
    weight = torch.arange(24.0).reshape(4, 6)
    tensors = {"weight": weight, "transposed": weight.T, "row": weight[1], "half": weight.half()}
    more = {
        "mask": torch.tensor([True, False]),
        "steps": torch.tensor(3),
        "parameter": torch.nn.Parameter(weight),
    }
    return {"epoch": 7, "state_dict": OrderedDict({**tensors, **more}), "notes": ["a", (1, 2.5, None)]}


def save(*, is_zip):
    file = io.BytesIO()
    torch.save(make_state(), file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


def damage_archive(rng, data):
    """Return the archive *data* with a damaged pickle, whose checksum is right."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(made, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            target.writestr(
                entry.filename, mutated(rng, content) if "data.pkl" in entry.filename else content
            )
    return made.getvalue()


DAMAGES = {
    "archive": (True, mutated),
    "pickle in an archive": (True, damage_archive),
    "file before torch 1.6": (False, mutated),
}


@pytest.mark.parametrize("count", [100, long(600)])
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_file_is_refused_or_read_in_bounded_memory(tmp_path, name, count):
    is_zip, damage = DAMAGES[name]
    data, path, outcomes = save(is_zip=is_zip), tmp_path / "state.pt", {"read": 0, "refused": 0}
    tracemalloc.start()
    try:
        for index in range(count):
            path.write_bytes(broken := damage(random.Random(f"{name}-{index}"), data))  # noqa: S311  no secret
            tracemalloc.reset_peak()
            try:
                read_state_dict(path)
                outcomes["read"] += 1
            except RecordError:
                outcomes["refused"] += 1
            assert tracemalloc.get_traced_memory()[1] < 4 * len(broken) + MEMORY, f"file {index}"
    finally:
        tracemalloc.stop()

    assert min(outcomes.values()) > count / 100
