"""Boxes of the images in a folder, in the JSON format of COCO."""

import json

import numpy as np
import pytest
from PIL import Image

from stages import data
from stages.contracts.errors import DataError
from stages.data import load_source
from stages.load_data import LoadDataConfig

CONTENT = {
    "images": [
        {"id": 7, "file_name": "b.png", "width": 20, "height": 10},
        {"id": 5, "file_name": "a.png", "width": 20, "height": 10},
        {"id": 6, "file_name": "train/unused.png", "width": 20, "height": 10},
    ],
    "annotations": [
        {"image_id": 7, "bbox": [1, 2, 4, 6], "category_id": 30},
        {"image_id": 7, "bbox": [0, 0, 20, 10], "category_id": 4},
        {"image_id": 7, "bbox": [3, 3, 1, 1], "category_id": 4, "iscrowd": 1},
    ],
    "categories": [{"id": 30, "name": "cat"}, {"id": 4, "name": "ant"}],
}


def read(folder, content=CONTENT, **options):
    (folder / "images").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((10, 20), np.uint8)).save(folder / "images" / name)
    (folder / "boxes.json").write_text(content if isinstance(content, str) else json.dumps(content))
    paths = {"path": str(folder / "images"), "boxes": str(folder / "boxes.json")}
    config = LoadDataConfig.model_validate({"source": {"kind": "image_folder", **paths, **options}})
    return load_source(config.source)


def test_boxes_are_corners_and_classes_are_numbered_by_id(tmp_path):
    arrays = read(tmp_path)

    assert arrays.targets["boxes"].ends.tolist() == [0, 2]
    assert arrays.targets["boxes"].values.tolist() == [[1, 2, 5, 8], [0, 0, 20, 10]]
    assert arrays.targets["labels"].values.tolist() == [1, 0]
    assert arrays.facts["class_names"] == ("ant", "cat")


def test_boxes_are_resized_with_their_images(tmp_path):
    arrays = read(tmp_path, size=[5, 40])

    assert arrays.targets["boxes"].values.tolist() == [[2, 1, 10, 4], [0, 0, 40, 5]]


def test_description_has_the_classes_of_the_boxes(tmp_path):
    arrays = data.materialize(read(tmp_path), "tensors")

    info = data.prepare(data.Splits(arrays)).info

    assert info.num_classes == {"boxes": None, "labels": 2}
    assert info.leaves["targets.boxes"].kind == "boxes"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "is not a file of boxes in COCO's format"),
        ({"images": []}, "is not a file of boxes in COCO's format"),
        (CONTENT | {"images": CONTENT["images"][1:]}, "KeyError"),
        (CONTENT | {"annotations": [[]]}, "AttributeError"),
        (CONTENT | {"annotations": [CONTENT["annotations"][0] | {"bbox": [10**400] * 4}]}, "OverflowError"),
        ("[" * 100_000, "RecursionError"),
        (
            CONTENT | {"images": CONTENT["images"][:1]},
            "has no image with the file_name 'a.png'. Add it, or remove the image",
        ),
    ],
)
def test_file_that_does_not_fit_is_an_error(content, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)
