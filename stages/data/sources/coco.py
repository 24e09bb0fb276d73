"""Boxes of objects in images, in the JSON format of the data set COCO."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.contracts.errors import DataError
from stages.data.image_files import ImageFormat
from stages.data.trees import Ragged


def read_coco(
    path: Path, names: Sequence[str], form: ImageFormat
) -> tuple[dict[str, Ragged], dict[str, Any]]:
    """Return the ``boxes`` and ``labels`` of the images with *names*, and the names of their classes.

    A box is left, top, right and bottom in pixels of the size in *form*, float32. Classes are numbered in the
    order of their ids. Annotations of crowds are left out. Raises `DataError` if *path* is not such a file,
    or lacks an image.
    """
    try:
        content = json.loads(path.read_bytes())
        categories = sorted(content["categories"], key=lambda category: category["id"])
        numbers = {category["id"]: number for number, category in enumerate(categories)}
        images = {image["file_name"]: image for image in content["images"]}
        rows: dict[Any, list[list[float]]] = {image["id"]: [] for image in content["images"]}
        for annotation in content["annotations"]:
            if not annotation.get("iscrowd"):
                left, top, width, height = annotation["bbox"]
                box = [left, top, left + width, top + height, numbers[annotation["category_id"]]]
                rows[annotation["image_id"]].append(box)
        if missing := [name for name in names if name not in images]:
            raise DataError(
                f"load_data.source.boxes: {path} has no image with the file_name {missing[0]!r}. Add it, or "
                "remove the image"
            )
        scaled = [_scale(rows[images[name]["id"]], images[name], form) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"load_data.source.boxes: {path} is not a file of boxes in COCO's format ({error!r}). Correct it"
        ) from error
    boxes, labels = Ragged.of([box[:, :4] for box in scaled]), Ragged.of([box[:, 4] for box in scaled])
    named = {"boxes": boxes, "labels": Ragged(labels.values.astype(np.int64), labels.ends)}
    return named, {"class_names": tuple(str(category["name"]) for category in categories)}


def _scale(boxes: list[list[float]], image: dict[str, Any], form: ImageFormat) -> np.ndarray:
    """Return *boxes* with their classes, (n, 5) float32, after the *image* was resized."""
    array = np.array(boxes, np.float64).reshape(-1, 5)
    if form.resize:
        height, width = form.size
        array[:, :4] *= np.array([width / image["width"], height / image["height"]] * 2)
    return array.astype(np.float32)
