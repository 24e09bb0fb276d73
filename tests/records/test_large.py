"""A recorder reads every file that it wrote at any compression ratio, and refuses decompression bombs."""

import io
import itertools
import zlib

import pytest
import torch
from long_tests import long
from torch import nn

from stages.contracts.errors import CheckpointError, RecordError
from stages.records import (
    BinBytesRecorder,
    DefaultRecorder,
    NamedMpkBytesRecorder,
    NamedMpkGzFileRecorder,
    from_plain,
    optimizer_record,
    read_item,
    to_plain,
)
from stages.records.gzip_stream import write_compressed
from stages.records.limits import LEAST_LIMIT, LIMIT_RATIO
from stages.records.recorder import PRECISIONS, RECORDERS
from stages.runs import Checkpoint, FileCheckpointer
from stages.runs.verification import verify_path

SHAPE = (4250, 4000)
"""17 million elements: 68 MB of float32."""
SHORT = {("named_mpk_gz", "full")}
CASES = [
    pytest.param(kind, precision, marks=() if (kind, precision) in SHORT else pytest.mark.long)
    for kind, precision in itertools.product(RECORDERS, PRECISIONS)
    if "json" not in kind or precision == "full"
]


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_recorder_reads_zeros_that_it_wrote(kind, precision, tmp_path):
    item = {"weight": {"id": "0" * 13, "param": torch.zeros(SHAPE)}, "beta": None}
    recorder = RECORDERS[kind](PRECISIONS[precision])

    path = recorder.record(item, tmp_path / "model")
    back = recorder.load(path, example_of(item))["weight"]["param"]

    assert back.shape == SHAPE
    assert not back.any()


@pytest.mark.parametrize("make", [NamedMpkBytesRecorder, long(BinBytesRecorder)])
def test_bytes_recorder_reads_zeros_that_it_wrote(make):
    item = {"weight": torch.zeros(SHAPE)}
    recorder = make()

    assert not recorder.load(recorder.record(item), example_of(item))["weight"].any()


def test_checkpoint_of_sparsely_trained_embedding_is_restored(tmp_path):
    """Adam's moments of rows that no batch contained are zero: 72 MB that compress 1000 to 1."""
    model = nn.Embedding(140_000, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.arange(9)).square().sum().backward()
    optimizer.step()
    checkpointer = FileCheckpointer(tmp_path, DefaultRecorder())

    checkpointer.save(1, Checkpoint({}, optimizer_record(optimizer, model), None))

    assert len(checkpointer.restore(1).optim) == 1
    assert len(read_item(tmp_path / "optim-1.mpk.gz")) == 1


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("named_mpk_gz", 1_400),
        ("json_gz", 1),
        pytest.param("named_mpk", 2_000, marks=pytest.mark.long),
        pytest.param("bin_gz", 2_000, marks=pytest.mark.long),
        pytest.param("json_gz", 2_000, marks=pytest.mark.long),
        pytest.param("named_mpk_gz", 8_000, marks=pytest.mark.long),
        pytest.param("bin_gz", 8_000, marks=pytest.mark.long),
    ],
)
def test_recorder_reads_small_values_that_it_wrote(kind, rows, tmp_path):
    item = {"options": [[None] * 100] * rows, "losses": [1.5, None] * 600}
    recorder = RECORDERS[kind]()

    path = recorder.record(item, tmp_path / "item")

    assert recorder.load(path, item) == item


@pytest.mark.parametrize(
    ("kind", "item", "message"),
    [
        ("named_mpk_gz", {"order": list(range(1 << 19))}, "record them as tensors"),
        pytest.param(
            *("json_gz", {"options": [[None] * 100] * 4_000}, "small values"), marks=pytest.mark.long
        ),
        ("json_gz", {"text": "x" * (1 << 20)}, "could not be read back from JSON"),
        ("bin", {"order": [1] * 60_000}, "at most 50000 can be read back"),
        ("bin", {"text": "x" * (1 << 25)}, "can be read back"),
        ("burnpack", {f"a{index}": 1 for index in range(60_000)}, "at most 50000 can be read back"),
        ("safetensors", {"order": [1] * 300_000}, "250000 can be read back"),
    ],
)
def test_recorder_refuses_to_write_values_that_it_could_not_read(kind, item, message, tmp_path):
    with pytest.raises(RecordError, match=message):
        RECORDERS[kind]().record(item, tmp_path / "item")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_trainer_record_with_history_of_200_000_numbers_is_restored(tmp_path):
    history = [[row // 200, "train", f"metric {row % 200}", 1 / (row + 1)] for row in range(200_000)]
    checkpointer = FileCheckpointer(tmp_path, DefaultRecorder())

    checkpointer.save(1, Checkpoint({}, {}, None, {"history": history}))

    assert checkpointer.restore(1).trainer["history"] == history
    assert all(verdict.problem is None for verdict in verify_path(tmp_path))


@pytest.mark.parametrize("size", [LEAST_LIMIT, LEAST_LIMIT + 1, 2 * LEAST_LIMIT + 12_345])
def test_written_member_is_never_smaller_than_readers_require(size):
    file = io.BytesIO()

    write_compressed([bytes(size)], file)

    data = file.getvalue()
    assert size <= max(LEAST_LIMIT, LIMIT_RATIO * len(data))
    assert len(zlib.decompress(data, 31)) == size


def example_of(item):
    return from_plain(to_plain(item), "the item")


@pytest.fixture
def bomb(tmp_path):
    """An ordinary gzip file of 70 MB of zeros in 68 kB."""
    path = tmp_path / "bomb.mpk.gz"
    recorded = NamedMpkBytesRecorder().record({"weight": torch.zeros(SHAPE)})
    packer = zlib.compressobj(9, wbits=31)
    path.write_bytes(packer.compress(recorded) + packer.flush())
    return path


def test_foreign_file_beyond_the_ratio_requires_a_higher_limit(bomb):
    with pytest.raises(RecordError, match=r"set a higher limit"):
        DefaultRecorder().load(bomb)
    assert DefaultRecorder().load(bomb, limit=70_000_000)["weight"].shape == SHAPE
    assert read_item(bomb, limit=1 << 40)["weight"].shape == SHAPE


def test_verified_checkpoint_is_restored_at_any_ratio(bomb, tmp_path):
    """Checkpoints that earlier versions wrote may inflate further than a file of unknown origin may."""
    checkpointer = FileCheckpointer(tmp_path / "checkpoint", DefaultRecorder())
    checkpointer.save(1, Checkpoint({}, {}, None))
    folder = tmp_path / "checkpoint"
    (folder / "model-1.mpk.gz").write_bytes(bomb.read_bytes())

    with pytest.raises(CheckpointError, match=r"model-1.mpk.gz has \d+ bytes, but \d+ were written"):
        checkpointer.restore(1)
    rewrite_manifest(folder)
    assert checkpointer.restore(1).model["weight"].shape == SHAPE
    assert all(verdict.problem is None for verdict in verify_path(folder))


def rewrite_manifest(folder):
    from stages.system.files import sha256

    recorder = NamedMpkGzFileRecorder()
    trainer = recorder.load(folder / "trainer-1")
    model = folder / "model-1.mpk.gz"
    trainer["files"][model.name] = {"size": model.stat().st_size, "sha256": sha256(model)}
    recorder.record(trainer, folder / "trainer-1")
