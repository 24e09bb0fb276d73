"""Commands of a project whose data are images with masks, which params alone describe."""

import json
import struct

import numpy as np
import pytest
from templates import short

from pipeline.project import check

PARAMS = """\
create_artifact_dir:
  keep: []
load_data:
  source:
    kind: npz
    path: squares.npz
    inputs: image
    targets: mask
  valid_fraction: 0.25
build_learner:
  model:
    kind: unet
    channels: [4, 8]
fit:
  num_epochs: 1
  batch_size: 8
  num_workers: 0
  device: cpu
  num_threads: 1
  portable: true
  augment: [horizontal_flip]
  metrics: [loss, accuracy, {kind: mean_iou, num_classes: 2}]
save_model:
  epoch: last
"""


def use_masks(project):
    """Have *project* train on images with masks."""
    images = np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), dtype=np.uint8)
    np.savez(project.folder / "squares.npz", image=images, mask=(images[:, 0] > 99).astype(np.uint8))
    (project.folder / "params.yaml").write_text(PARAMS)
    project.add_deps()
    return project


@pytest.fixture(scope="module")
def segmentation(home, tmp_path_factory):
    """Return a project after a run on images with masks."""
    project = use_masks(short(tmp_path_factory.mktemp("masks") / "project", home))
    project.call("run").ok()
    return project


def test_params_alone_describe_a_segmentation(segmentation):
    values = json.loads((segmentation.folder / "artifacts/metrics.json").read_text())

    assert values["valid"].keys() >= {"Accuracy", "Loss", "Mean IoU"}


def test_check_finds_no_mistake_in_the_params_of_a_segmentation(segmentation, tmp_path, monkeypatch):
    """`learner check` has a process import the parts, and `check.main` is its program."""
    segmentation.call("check", "--no-import").ok()
    monkeypatch.chdir(segmentation.folder)

    check.main(str(tmp_path / "result"))

    entries = [json.loads(line) for line in (tmp_path / "result").read_text().splitlines()]
    assert entries[-1] == list(check.END)
    assert [mistake for _, mistake in entries if mistake] == []


@pytest.mark.long  # pipeline/engine/test_entry_points.py, on images with a class
def test_run_and_dvc_repro_give_the_same_segmentation(segmentation, other_project):
    for name in ("params.yaml", "squares.npz", "dvc.yaml"):
        (other_project.folder / name).write_bytes((segmentation.folder / name).read_bytes())
    other_project.dvc("repro").ok()
    locks = [project.folder / "dvc.lock" for project in (segmentation, other_project)]
    assert locks[0].read_bytes() == locks[1].read_bytes()


def test_data_shows_the_masks_beside_the_images(segmentation):
    printed = segmentation.call("data", "--count", "3", "--epoch", "1", "--epoch", "2").ok()

    assert printed == "wrote samples.png: 3 samples of train in epochs 1, 2\n"
    content = (segmentation.folder / "samples.png").read_bytes()
    assert struct.unpack_from(">II", content, 16) == (2 * 2 * 66, 3 * 66)
