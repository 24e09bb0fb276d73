"""The command `learner data`."""

import shutil
import struct

NO_SPLIT = "--split 'dev': the data has only train, valid. Use one of them"


def test_data_writes_a_sheet_of_images(finished):
    finished.edit("params.yaml", "num_epochs:", "augment: [{kind: random_crop, padding: 2}]\n  num_epochs:")

    printed = finished.call("data", "--count", "3").ok()

    assert printed == "wrote samples.png: 3 samples of train in epochs 1, 2, 3, 4\n"
    content = (finished.folder / "samples.png").read_bytes()
    assert struct.unpack_from(">II", content, 16) == (4 * 66, 3 * 66)


def test_data_shows_one_epoch_without_augmentation(finished):
    printed = finished.call("data", "--split", "valid", "--output", "sheets/valid.png").ok()

    assert printed == "wrote sheets/valid.png: 8 samples of valid in epoch 1\n"
    assert (finished.folder / "sheets/valid.png").exists()


def test_data_refuses_an_unknown_split_and_missing_data(finished):
    refused = finished.call("data", "--split", "dev")
    shutil.rmtree(finished.folder / "data")
    missing = finished.call("data")

    assert (refused.code, refused.err) == (2, f"error: {NO_SPLIT}\n")
    assert missing.code == 1
    assert "Run load-data first" in missing.err
