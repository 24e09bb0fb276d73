"""`learner predict` writes a row for each input, from the model of the workspace or of a revision."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch

from pipeline.project.revisions.model import load_model as load_model_of_revision
from stages import load_model
from stages.contracts.errors import CheckpointError
from stages.data.sources import digits


@pytest.fixture
def images(tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, digits().inputs[:70])
    return path


def read_rows(path):
    """Return the rows of a file of predictions."""
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open() as file:
        return list(csv.DictReader(file))


def test_formats_have_the_same_rows(finished, images, tmp_path):
    files = [tmp_path / f"out.{suffix}" for suffix in ("csv", "jsonl", "parquet")]

    printed = [finished.call("predict", str(images), "--out", str(file)).ok() for file in files]

    assert printed == [f"wrote {file}: 70 predictions\n" for file in files]
    tables = [read_rows(file) for file in files]
    assert tables[1] == tables[2]
    assert tables[0] == [{name: str(value) for name, value in row.items()} for row in tables[1]]
    assert list(tables[0][3]) == ["name", "class", *(f"p({number})" for number in range(10))]
    assert tables[0][3]["name"] == f"{images}:3"


def test_model_of_a_revision_is_loaded_in_a_program(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)

    model, expected = load_model_of_revision("HEAD"), load_model("artifacts")

    samples = digits().inputs[:9]
    assert torch.equal(model.predict(samples).outputs, expected.predict(samples).outputs)
    with pytest.raises(CheckpointError, match="For a revision, call `load_model` of pipeline.project.rev"):
        load_model("HEAD")


def test_model_of_a_revision_is_used(finished, images, tmp_path):
    files = [tmp_path / "workspace.csv", tmp_path / "revision.csv"]
    finished.call("predict", str(images), "--out", str(files[0])).ok()
    shutil.rmtree(finished.folder / "artifacts")

    finished.call("predict", "HEAD", str(images), "--out", str(files[1])).ok()

    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["images.npy", "--out", "out.txt"], 2, "must end in one of .csv, .jsonl, .parquet"),
        (["absent.npy", "--out", "out.csv"], 1, "absent.npy does not exist. Correct the path"),
        (["params.yaml", "--out", "out.csv"], 1, "params.yaml cannot be read as an input of this model"),
        (["params.yaml", "--out", "out.csv", "--model", "data"], 1, "data/config.json cannot be read"),
    ],
)
def test_mistake_is_one_message_and_writes_nothing(finished, images, arguments, code, message):
    (finished.folder / "images.npy").write_bytes(images.read_bytes())

    ended = finished.call("predict", *arguments)

    assert ended.code == code
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert not list(finished.folder.glob("out.*"))
