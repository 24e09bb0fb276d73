"""Files of data run no code, and take no more memory than their size allows."""

import gzip
import io
import json
import os
import struct

import numpy as np
import pytest
import torch
from hostile import make_learner

from pipeline.comparison.plots import empty_confusion_spec, empty_curves_spec
from stages.contracts.errors import CheckpointError, DataError, RecordError, StageError
from stages.data.image_files import ImageDecoder, ImageFormat, UndecodableImageError
from stages.data.sources.array_files import map_npy, read_idx, read_npz
from stages.data.sources.image_folder import image_folder
from stages.data.sources.tables import table
from stages.data.sources.texts import text
from stages.learner import LearnerSpec
from stages.records.torch_files import read_state_dict
from stages.runs.manifest import LogLedger, add_checksum, read_finished
from stages.system.file_lock import hold_lock, is_locked, lock_holder, open_lock
from stages.system.files import is_part_of, new_part, open_atomic, open_part, read_regular, write_text

FOREIGN = "model:DigitNet"
LARGE = 70 << 20
"""More bytes than a small file may expand to."""


@pytest.fixture
def learner(world):
    """Return the clone of a project whose learner.json names a class that params do not name."""
    params = (world.origin / "params.yaml").read_text()
    assert "model:DigitNet" in params
    world.write("params.yaml", params.replace("model:DigitNet", "other:Net"))
    return world.deliver(make_learner(FOREIGN))


@pytest.mark.parametrize(
    "command",
    [
        "records convert artifacts/learner/record.bin out.mpk --learner artifacts/learner",
        "records diff artifacts/learner/record.bin artifacts/learner/record.bin --learner artifacts/learner",
        "evaluate",
        "lr-find",
    ],
)
def test_learner_json_runs_no_code_that_params_do_not_name(learner, command):
    before = learner.snapshot()

    done = learner.learner(*command.split())

    remedy = "runs only built-in code" if command.startswith("records") else "build_learner in params.yaml"
    assert (done.code, FOREIGN in done.err, remedy in done.err) == (1, True, True), done.text
    assert "Traceback" not in done.text
    assert not learner.marker.exists()
    assert learner.snapshot() == before


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        ({"kind": "mine:Schedule", "per": "batch"}, "mine:Schedule"),
        ({"kind": "lambda", "per": "batch", "lr_lambda": "mine:f"}, "mine:f"),
        ({"kind": "chained", "per": "batch", "schedulers": [{"kind": "mine:Part"}]}, "mine:Part"),
    ],
)
def test_code_is_found_in_every_part_of_a_learner(tmp_path, schedule, named):
    content = json.loads(make_learner("cnn").content) | {"schedule": schedule}
    (tmp_path / "learner.json").write_text(json.dumps(content))
    spec = LearnerSpec.read(tmp_path)

    with pytest.raises(CheckpointError, match=named):
        spec.check_code()
    spec.check_code({named})


def test_built_in_learner_runs_no_other_code(tmp_path):
    (tmp_path / "learner.json").write_text(make_learner("cnn").content)

    LearnerSpec.read(tmp_path).check_code()


def test_npz_that_expands_a_thousand_times_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", inputs=np.zeros(LARGE, np.uint8))

    with pytest.raises(DataError, match="would expand to 73,400,448 bytes"):
        read_npz(tmp_path / "x.npz", ("inputs",))


def replace_in_npz(folder, old, new):
    """Return an archive of NumPy in which *new* replaces the last *old*."""
    np.savez(folder / "x.npz", inputs=np.zeros(4))
    before, _, after = (folder / "x.npz").read_bytes().rpartition(old)
    (folder / "x.npz").write_bytes(before + new + after)
    return folder / "x.npz"


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"PK\1\2\x2d\3\x2d", b"PK\1\2\x2d\3\xff"), (b"inputs", b"input\x80"), (b"fortran", b"(ortran")],
)
def test_corrupt_npz_is_refused(tmp_path, old, new):
    with pytest.raises(DataError):
        read_npz(replace_in_npz(tmp_path, old, new), ("inputs",))


@pytest.mark.parametrize(
    "header", [struct.pack("<H", 9) + b"{'descr':", struct.pack("<H", 9_000) + b"-" * 9_000]
)
def test_npy_with_an_invalid_header_is_refused(tmp_path, header):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + header)

    with pytest.raises(DataError, match="header is invalid"):
        map_npy(tmp_path / "x.npy", "inputs")


def test_torch_file_with_a_false_size_of_an_entry_is_refused(tmp_path):
    """The zip file states how many bytes to read of an entry that is not compressed."""
    torch.save({"w": torch.zeros(3)}, tmp_path / "x.pt")
    content = bytearray((tmp_path / "x.pt").read_bytes())
    entry = content.index(b"PK\1\2")
    content[entry + 20 : entry + 24] = b"\xfe\xff\xff\xff"
    (tmp_path / "x.pt").write_bytes(content)

    with pytest.raises(RecordError, match="compressed or overlap"):
        read_state_dict(tmp_path / "x.pt")


def test_idx_that_expands_a_thousand_times_is_refused(tmp_path):
    head = b"\0\0\x08\x01" + LARGE.to_bytes(4, "big")
    (tmp_path / "x.gz").write_bytes(gzip.compress(head + bytes(LARGE), 1))

    with pytest.raises(DataError, match="would expand to 73,400,320 bytes"):
        read_idx(tmp_path / "x.gz", 1)


def test_image_that_expands_a_thousand_times_or_is_a_program_is_refused(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="images need the extra images")
    decoder = ImageDecoder(ImageFormat(root=str(tmp_path), mode="gray", size=(8, 8), resize=True))
    content = io.BytesIO()
    pillow.new("L", (16_000, 5_000)).save(content, "PNG")
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"

    for encoded, message in (
        (content.getvalue(), "would expand to 80,000,000 bytes"),
        (program, "PostScript"),
    ):
        with pytest.raises(UndecodableImageError, match=message):
            decoder.decode("x.png", encoded)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "", "a\0"])
def test_manifest_with_an_odd_name_counts_as_corrupt(tmp_path, name):
    files = {name: {"size": 1, "sha256": "0" * 64}}
    for file in ("logs.jsonl", "finished.json"):
        (tmp_path / file).write_text(json.dumps(add_checksum({"epoch": 1, "files": files})))

    assert read_finished(tmp_path) is None
    assert LogLedger(tmp_path).read(1) == {}


def replace_with(kind, path):
    """Put a pipe that nobody writes, or a link to a device without an end, in place of the file *path*."""
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")


def draw_images(folder):
    """Write two images of each of two classes."""
    pillow = pytest.importorskip("PIL.Image", reason="images need the extra images")
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pillow.new("L", (8, 8)).save(folder / name)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("images/a/0.png", {}),
        ("images/a/1.png", {}),
        ("labels.csv", {"labels": "labels.csv"}),
        ("boxes.json", {"boxes": "boxes.json"}),
    ],
)
def test_pipe_or_device_among_images_is_refused(name, arguments, kind, tmp_path, monkeypatch):
    """An archive of data may contain links and pipes, which would take all memory, or block."""
    monkeypatch.chdir(tmp_path)
    draw_images(tmp_path / "images")
    replace_with(kind, tmp_path / name)

    with pytest.raises(DataError, match="not a regular file"):
        image_folder("images", **arguments).inputs[:]


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["texts/a/0.txt", "t.csv", "t.jsonl"])
def test_pipe_or_device_in_place_of_texts_is_refused(name, kind, tmp_path):
    (tmp_path / "texts/a").mkdir(parents=True)
    replace_with(kind, tmp_path / name)

    with pytest.raises(DataError, match="not a regular file"):
        text(str(tmp_path / name.partition("/")[0]))


def test_pipe_in_place_of_an_idx_file_is_refused(tmp_path):
    replace_with("pipe", tmp_path / "x.gz")

    with pytest.raises(DataError, match="not a regular file"):
        read_idx(tmp_path / "x.gz", 1)


def test_links_that_stand_for_billions_of_folders_are_refused(tmp_path):
    draw_images(tmp_path)
    for depth in range(30):
        (tmp_path / f".{depth}").mkdir()
        for name in "xy":
            (tmp_path / f".{depth}" / name).symlink_to(f"../.{depth + 1}")
    (tmp_path / "a/more").symlink_to("../.0")
    (tmp_path / ".30").mkdir()

    with pytest.raises(DataError, match="link to a folder that this class has already"):
        image_folder(str(tmp_path))


def write_arrow(path, old, new):
    """Write a table of 400 rows, in which the array *new* replaces *old*, and return its path."""
    arrow = pytest.importorskip("pyarrow", reason="tables need the extra tables")
    codes = arrow.DictionaryArray.from_arrays(np.arange(400, dtype=np.int32) % 2, ["aa", "bb"])
    columns = {"x": np.zeros(400), "text": codes.dictionary_decode(), "code": codes, "y": np.arange(400) % 2}
    with arrow.ipc.new_file(path, arrow.table(columns).schema) as file:
        file.write_table(arrow.table(columns))
    content = path.read_bytes()
    assert old.tobytes() in content
    path.write_bytes(content.replace(old.tobytes(), new.astype(old.dtype).tobytes()))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (np.arange(0, 802, 2, np.int32), np.arange(401) * 4_000_000),
        (np.arange(400, dtype=np.int32) % 2, np.arange(400) * 4_000_000),
        (np.frombuffer(b"aabbaabb", np.uint8), np.full(8, 255)),
    ],
    ids=["offsets", "codes", "text"],
)
def test_arrow_file_with_false_positions_is_refused(old, new, tmp_path):
    """Arrow reads at any position that the file states, which ends the process."""
    path = write_arrow(tmp_path / "t.arrow", old, new)

    with pytest.raises(DataError, match="cannot be read"):
        table(path, target="y", categorical=["text", "code"])


@pytest.mark.parametrize("name", ["number", "text"])
def test_parquet_file_that_expands_ten_thousand_times_is_refused(name, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="tables need the extra tables")
    arrow = pytest.importorskip("pyarrow")
    texts = arrow.DictionaryArray.from_arrays(np.zeros(200_000, np.int32), ["z" * 1_000_000])
    column = texts if name == "text" else np.zeros(LARGE // 8)
    columns = {"x": column, "y": np.zeros(len(column), np.int64)}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet", store_schema=False)

    with pytest.raises(DataError, match="expands to more than 67,108,864 bytes"):
        table(str(tmp_path / "t.parquet"), target="y", categorical=["x"] if name == "text" else ())


def fill_templates():
    return empty_confusion_spec(), empty_curves_spec(["train"], x="epoch", title="Loss", color_of={})


@pytest.mark.parametrize(
    "name", ["linear", "linear.json", ".dvc/plots/linear.json", ".dvc/plots/confusion_counts.json"]
)
def test_template_of_a_repository_loads_no_data(name, tmp_path, monkeypatch):
    """`learner plot --svg` would fetch the data, also from an address that only this machine can reach."""
    expected = fill_templates()
    layer = {"data": {"url": "http://127.0.0.1/private"}, "mark": "text", "transform": [{}]}
    (tmp_path / ".dvc/plots").mkdir(parents=True)
    (tmp_path / name).write_text(
        json.dumps({"data": {"values": "<DVC_METRIC_DATA>"}, "layer": [layer], "encoding": {}})
    )
    monkeypatch.chdir(tmp_path)

    assert fill_templates() == expected


# one function makes temporary files, one opens locks, and one reads files of unknown origin


def test_temporary_file_has_a_new_name_and_follows_no_link(tmp_path):
    target, victim = tmp_path / "a.txt", tmp_path / "victim"
    victim.write_text("the user's")
    (tmp_path / ".a.txt.part").symlink_to(victim)

    with open_atomic(target) as file:
        [part] = [each for each in tmp_path.iterdir() if is_part_of(each, target) and not each.is_symlink()]
        file.write(b"new")

    assert (target.read_text(), victim.read_text()) == ("new", "the user's")
    assert new_part(target) != new_part(target)
    assert not part.exists()


def test_temporary_files_of_killed_processes_are_removed_and_open_ones_stay(tmp_path):
    target = tmp_path / "a.txt"
    new_part(target).write_text("incomplete")
    (tmp_path / ".a.txt.other.part").write_text("of another file")

    with open_part(target) as first:
        first.write(b"first")
        write_text(target, "second")

    assert target.read_text() == "first"
    assert sorted(each.name for each in tmp_path.iterdir()) == [".a.txt.other.part", "a.txt"]


def test_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    with pytest.raises(ValueError, match="failed"), open_atomic(tmp_path / "a.txt") as file:
        file.write(b"new")
        raise ValueError("failed")

    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_lock_is_neither_a_link_nor_a_pipe(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("the user's")
    (tmp_path / "link.lock").symlink_to(victim)
    (tmp_path / "new.lock").symlink_to(tmp_path / "created")
    os.mkfifo(tmp_path / "pipe.lock")

    for name in ("link.lock", "new.lock", "pipe.lock"):
        with pytest.raises(StageError, match="locks are regular files"), hold_lock(tmp_path / name):
            pass
        assert (is_locked(tmp_path / name), lock_holder(tmp_path / name)) == (False, None)
    assert victim.read_text() == "the user's"
    assert not (tmp_path / "created").exists()


def test_opened_lock_keeps_its_content(tmp_path):
    (tmp_path / "a.lock").write_text("holder")

    os.close(open_lock(tmp_path / "a.lock"))

    assert (tmp_path / "a.lock").read_text() == "holder"


def test_only_regular_files_up_to_a_limit_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("large")

    for name in ("pipe", "device"):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / name)
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "large", 4)
    assert read_regular(tmp_path / "link", 5) == b"12345"
