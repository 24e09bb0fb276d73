"""Commands of a project whose data are images with masks, which params alone describe."""

import json
import struct

import numpy as np
import pytest

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
  num_epochs: 2
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


@pytest.fixture
def segmentation(project):
    images = np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), dtype=np.uint8)
    np.savez(project.folder / "squares.npz", image=images, mask=(images[:, 0] > 99).astype(np.uint8))
    (project.folder / "params.yaml").write_text(PARAMS)
    project.call("check", "--fix").ok()
    return project


def test_params_alone_describe_a_segmentation(segmentation):
    segmentation.call("check").ok()

    segmentation.call("run").ok()

    values = json.loads((segmentation.folder / "artifacts/metrics.json").read_text())
    assert values["valid"].keys() >= {"Accuracy", "Loss", "Mean IoU"}


@pytest.mark.long  # pipeline/engine/test_entry_points.py, on images with a class
def test_run_and_dvc_repro_give_the_same_segmentation(segmentation, other_project):
    segmentation.call("run").ok()
    for name in ("params.yaml", "squares.npz", "dvc.yaml"):
        (other_project.folder / name).write_bytes((segmentation.folder / name).read_bytes())
    other_project.dvc("repro").ok()
    locks = [project.folder / "dvc.lock" for project in (segmentation, other_project)]
    assert locks[0].read_bytes() == locks[1].read_bytes()


def test_data_shows_the_masks_beside_the_images(segmentation):
    segmentation.call("run", "load-data").ok()

    printed = segmentation.call("data", "--count", "3", "--epoch", "1", "--epoch", "2").ok()

    assert printed == "wrote samples.png: 3 samples of train in epochs 1, 2\n"
    content = (segmentation.folder / "samples.png").read_bytes()
    assert struct.unpack_from(">II", content, 16) == (2 * 2 * 66, 3 * 66)
