"""``learner records`` reads files that Burn wrote and files of this package."""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.commands.envelope import run_for_program
from stages.contracts.errors import StageError
from stages.records.formats import FORMATS, read, write
from stages.records.limits import LEAST_LIMIT
from stages.records.named_records import build_metadata
from stages.records.precision import FullPrecision
from stages.records.record_tree import RawTensor, Record

BURN = Path(__file__).parents[4] / "shared" / "burn"
MPK, BPK = BURN / "model.mpk", BURN / "model.bpk"
needs_burn = pytest.mark.skipif(
    not MPK.exists(), reason="the files that Burn wrote are not next to this project"
)
FORMATS_WITH_NAMES = [name for name, form in FORMATS.items() if form.has_names]


def learner_json(*arguments):
    """Return the exit code of ``learner records`` with ``--json``, and the field data of its envelope."""
    with redirect_stdout(StringIO()) as output:
        code = run_for_program(app, ["records", *map(str, arguments), "--json"])
    return code, json.loads(output.getvalue())["data"]


def learner(*arguments):
    """Return the exit code and the output of ``learner records``, with errors as `main` prints them."""
    done = CliRunner().invoke(app, ["records", *map(str, arguments)])
    if isinstance(done.exception, StageError):
        return done.exception.exit_code, f"error: {done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def write_record(path, values=(1.0, 2.0, 3.0), **item):
    """Write a small record to *path* and return *path*."""
    array = np.array(values, "<f4")
    tree = {"fc": {"weight": {"id": "0" * 13, "param": RawTensor.of("F32", array.shape, array.tobytes())}}}
    write(Record(tree | item, build_metadata("…", FullPrecision)), path, FORMATS["named_mpk_gz"])
    return path


@needs_burn
def test_show_prints_a_record_of_burn():
    code, text = learner("show", MPK)

    assert code == 0
    assert "named_mpk, 58,001 bytes\nBurn 0.17.0, HalfPrecisionSettings" in text
    assert "42 tensors, 27,457 parameters, 54,914 bytes of tensors" in text
    assert "\nfc\n  weight  F16 [64, 1]  id vbh7uti4e9e08\n" in text


@needs_burn
def test_show_prints_a_record_as_json():
    _, output = learner_json("show", BPK)

    assert (output["format"], output["tensors"], output["parameters"]) == ("burnpack", 18, 260_810)
    assert output["entries"][0]["path"] == "conv1.conv.weight"
    assert output["entries"][0]["shape"] == [64, 1, 3, 3]


def test_show_hides_constants_without_the_option_all(tmp_path):
    path = write_record(tmp_path / "a.mpk.gz", stride=[None, None], rate=0.5)

    assert "stride" not in learner("show", path)[1]
    assert "rate  0.5" in learner("show", path)[1]
    assert "stride" in learner("show", path, "--all")[1]


def test_show_of_a_format_without_names_prints_metadata_and_advice(tmp_path):
    for form in (FORMATS["bin"], FORMATS["bin_gz"]):
        path = tmp_path / f"a{form.suffix}"
        write(Record({"rate": 0.5}, build_metadata(form.type_name, FullPrecision)), path, form)
        code, text = learner("show", path)

        assert code == 0
        assert "Burn 0.21.0, FullPrecisionSettings" in text
        assert "no names" in text
        assert learner("verify", path)[0] == 0


@needs_burn
@pytest.mark.parametrize("name", FORMATS_WITH_NAMES)
def test_file_converts_to_every_named_format_and_back(tmp_path, name):
    converted, back = tmp_path / f"a{FORMATS[name].suffix}", tmp_path / "back.mpk"

    assert learner("convert", MPK, converted, "--layout", "burn") == (0, "")
    assert learner("convert", converted, back) == (0, "")

    assert learner("diff", MPK, converted)[0] == 0
    assert learner("verify", converted)[0] == 0
    if name != "burnpack":  # burnpack cannot store nil constants
        assert back.read_bytes() == MPK.read_bytes()
    assert learner("diff", MPK, back, "--ids") == (0, "equal\n")


@needs_burn
def test_burnpack_converts_to_safetensors_and_back_without_loss(tmp_path):
    converted, back = tmp_path / "a.safetensors", tmp_path / "back.bpk"

    learner("convert", BPK, converted, "--layout", "burn")
    learner("convert", converted, back)

    assert back.read_bytes() == BPK.read_bytes()


@needs_burn
def test_recorder_option_sets_format_without_suffix(tmp_path):
    assert learner("convert", MPK, tmp_path / "plain", "--recorder", "json_gz")[0] == 0

    json.loads(gzip.decompress((tmp_path / "plain").read_bytes()))


@needs_burn
def test_convert_changes_precision_and_warns_about_lost_bits(tmp_path):
    half = tmp_path / "half.bpk"
    code, text = learner("convert", BPK, half, "--precision", "half")

    assert (code, text.count("\n")) == (0, 1)
    assert text.startswith("warning: half precision loses bits of conv1.conv.weight and 17 more")
    assert learner("convert", half, tmp_path / "full.bpk", "--precision", "full") == (0, "")
    differ, output = learner_json("diff", BPK, tmp_path / "full.bpk")
    found = output["differences"]
    assert differ == 1
    assert {row["what"] for row in found} == {"value"}
    assert max(row["largest"] for row in found) < 0.05


def test_convert_replaces_existing_file_only_with_force(tmp_path):
    first, second = write_record(tmp_path / "a.mpk.gz"), write_record(tmp_path / "b.mpk.gz", [9.0])

    code, text = learner("convert", first, second)
    assert (code, "--force" in text) == (1, True)
    assert learner("diff", first, second)[0] == 1
    assert learner("convert", first, second, "--force")[0] == 0
    assert learner("diff", first, second)[0] == 0
    code, text = learner("convert", first, first, "--force")
    assert (code, "is the file to read" in text) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("show", "nowhere.mpk"), 1, "no record at nowhere.mpk"),
        (("verify", "nowhere"), 1, "nowhere does not exist. Correct the path"),
        (("show", "model.onnx"), 1, "unknown suffix; use one of .mpk.gz, .mpk"),
        (("convert", "a.mpk", "b.mpk", "--recorder", "burnpak"), 2, "Did you mean 'burnpack'?"),
        (("convert", "a.mpk", "b.bin"), 2, "--learner"),
        (("diff", "a.mpk", "b.bin"), 2, "--learner"),
    ],
)
def test_mistake_is_reported_with_its_exit_code(tmp_path, monkeypatch, arguments, code, expected):
    monkeypatch.chdir(tmp_path)

    exit_code, text = learner(*arguments)

    assert exit_code == code
    assert expected in text


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data + b"x", lambda data: data[:40]])
def test_verify_detects_a_truncated_or_extended_file(tmp_path, damage):
    intact, damaged = write_record(tmp_path / "a.mpk.gz"), tmp_path / "b.mpk.gz"
    damaged.write_bytes(damage(intact.read_bytes()))

    code, text = learner("verify", intact, damaged)

    assert code == 1
    first, second = text.splitlines()
    assert first == f"{intact}: ok (Burn 0.21.0, 1 tensors, 12 bytes)"
    assert second.startswith(f"{damaged}: wrong: ")


def write_checkpoint(folder, epoch):
    """Write the files of a checkpoint with their sizes and hashes, as the checkpointer does."""
    parts = [
        write_record(folder / f"{part}-{epoch}.mpk.gz", [epoch]) for part in ("model", "optim", "scheduler")
    ]
    files = {
        part.name: {"size": part.stat().st_size, "sha256": hashlib.sha256(part.read_bytes()).hexdigest()}
        for part in parts
    }
    return write_record(folder / f"trainer-{epoch}.mpk.gz", files=files)


def test_verify_reports_which_checkpoints_are_intact(tmp_path):
    folder = tmp_path / "checkpoint"
    for epoch in (1, 2, 3, 4):
        write_checkpoint(folder, epoch)
    write_record(folder / "model-2.mpk.gz", [7.0])  # intact, but another file
    (folder / "optim-3.mpk.gz").unlink()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "other.bin").write_bytes(b"no record")

    code, text = learner("verify", tmp_path)

    assert code == 1
    output = [line.partition(": ") for line in text.splitlines() if line.startswith("checkpoint ")]
    assert [expected.startswith("ok") for _, _, expected in output] == [True, False, False, True]
    assert re.search("has changed since it was written|bytes", output[1][2])
    assert "optim-3.mpk.gz is missing" in output[2][2]
    assert "config.json" not in text
    assert "other.bin" not in text


def test_show_and_verify_commands_do_not_load_torch(tmp_path):
    path = write_record(tmp_path / "a.mpk.gz")
    program = (
        "import sys\nfrom pipeline.cli import app\n"
        "assert not {'torch', 'numpy', 'prefect'} & sys.modules.keys()\n"
        f"for name in ('show', 'verify'):\n    app(['records', name, {str(path)!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_error_has_no_traceback(tmp_path, open_project):
    refused = open_project(tmp_path).learner("records", "show", "nowhere.mpk")

    assert (refused.code, refused.out, refused.err) == (1, "", "error: no record at nowhere.mpk\n")


def test_failed_convert_writes_no_file(tmp_path):
    path = write_record(tmp_path / "a.mpk.gz", text="burnpack holds no text")

    code, _ = learner("convert", path, tmp_path / "a.bpk")

    assert code == 1
    assert [each.name for each in tmp_path.iterdir()] == ["a.mpk.gz"]
    shutil.copy(path, tmp_path / "b.mpk.gz")
    assert len(read(tmp_path / "b.mpk.gz").item) == 2


def test_learner_option_supplies_the_names_of_a_bin_file(finished):
    model, learner = "artifacts/model.mpk.gz", ("--learner", "artifacts/learner")

    for source, target in ((model, "model.bin"), ("model.bin", "back.mpk.gz")):
        finished.call("records", "convert", source, target, *learner).ok()
    finished.call("records", "diff", "--ids", model, "back.mpk.gz").ok()


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    """Return the path of a record of zeros, whose content is longer than a small file may have."""
    path = tmp_path_factory.mktemp("zeros") / "zeros.mpk.gz"
    tensor = RawTensor.of("U8", (LEAST_LIMIT,), bytes(LEAST_LIMIT))
    content = Record({"weight": tensor}, build_metadata("…", FullPrecision))
    path.write_bytes(gzip.compress(b"".join(FORMATS["named_mpk"].encode(content)), 1))
    return path


@pytest.mark.parametrize("command", ["show", "verify", "convert", "diff"])
def test_limit_option_accepts_a_highly_compressed_record(command, zeros, tmp_path):
    others = {"convert": [tmp_path / "zeros.bpk"], "diff": [zeros]}.get(command, [])

    code, text = learner(command, zeros, *others)
    assert code == 1
    assert "--limit" in text
    assert learner(command, zeros, *others, "--limit", 2 * LEAST_LIMIT)[0] == 0


def test_show_lists_a_state_dict_that_torch_saved_and_refuses_code(tmp_path):
    state = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2, dtype=torch.float16)}
    torch.save({"model": state, "epoch": 3}, tmp_path / "model.pt")
    torch.save({"model": Path}, tmp_path / "code.pth")

    code, text = learner("show", tmp_path / "model.pt")
    refused, message = learner("show", tmp_path / "code.pth")

    assert code == 0, text
    assert "model.pt: torch, " in text
    assert "2 tensors, 8 parameters, 28 bytes of tensors" in text
    assert "  weight  F32 [2, 3]\n" in text
    assert refused == 1
    assert "pathlib" in message
