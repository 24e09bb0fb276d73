"""The data source ``image_folder``: images in a folder for each class, or with a CSV file of labels."""

import csv
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from stages.contracts.errors import DataError
from stages.data.image_files import (
    CHANNELS,
    ImageDecoder,
    ImageFiles,
    ImageFormat,
    UndecodableImageError,
    put,
)
from stages.data.sources.labels import (
    ListedFile,
    describe_read_error,
    list_files,
    list_unlabeled,
    read_rows,
)
from stages.data.splits import Arrays, Splits
from stages.data.trees import Ragged, Tree, flatten, unflatten
from stages.system.files import open_regular

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of the names of image files; other files in the folders of classes are ignored."""
MAX_TENSOR_BYTES = 1 << 30
"""The size of decoded images up to which ``auto`` writes tensors: 1 GiB, which most machines hold twice."""
FILES_AT_ONCE = 256
"""The number of images that threads decode before the next ones are read."""

MAX_THREADS = 16
"""More threads wait for each other, as parts of Pillow hold the interpreter's lock."""
_INVALID_BOXES = (ArithmeticError, AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)
"""What the content of another file than one of boxes raises."""
Materialize = Literal["auto", "tensors", "index"]
"""The form in which load-data stores images: their values, or the names of the files."""

log = logging.getLogger(__name__)


def image_folder(
    path: str,
    labels: str | None = None,
    size: Sequence[int] | None = None,
    mode: Literal["rgb", "gray"] = "rgb",
    corrupt: Literal["error", "skip"] = "error",
    *,
    masks: str | None = None,
    ignored: int | None = None,
    boxes: str | None = None,
) -> Arrays:
    """Return the images below the folder *path*: (N, channels, height, width), uint8, and their targets.

    The targets are classes: the sorted names of the folders in *path*, or the labels in the CSV file
    *labels* with the columns ``path``, relative to the folder, and ``label``. With a folder *masks*, they are
    the masks (N, height, width) in the files that have the names of the images, up to their endings, whose
    value *ignored* becomes -100. With a file *boxes* of COCO, they are the ``boxes`` and ``labels`` of
    objects.

    Splits are the folders ``train``, ``valid`` or ``val``, and ``test`` if *path* has no others, or a column
    ``split``; groups are a column ``group``. *size* is height and width, to which other images are resized;
    without it, all images have one size. An image is decoded when it is read, and turned as its EXIF
    orientation asks for; transparency is dropped. Raises `DataError` if there is no image, and for an image
    of more than 8 bits per channel.
    """
    folder = Path(path)
    for argument, name in (("path", path), ("masks", masks)):
        if name is not None and not Path(name).is_dir():
            raise DataError(f"load_data.source.{argument}: there is no folder {name!r}. Correct the path")
    listed = _list_images(folder, labels, has_classes=masks is boxes is None)
    names = [image.path for image in listed]
    form = ImageFormat(root=path, mode=mode, size=(1, 1), resize=size is not None)
    shape = tuple(size) if size is not None else _find_size(ImageDecoder(form), names, corrupt)
    form = form.model_copy(update={"size": shape})
    targets, facts = _read_targets(form, listed, masks, ignored, boxes)
    return Arrays(
        ImageFiles(form, names),
        targets,
        (
            f"{path}: images",
            f"{labels or masks or boxes or path}: {'targets' if masks or boxes else 'classes'}",
        ),
        facts | ({"skipped": 0} if corrupt == "skip" else {}),
        groups=None if listed[0].group is None else np.array([image.group for image in listed]),
        splits=None if listed[0].split is None else np.array([image.split for image in listed]),
    )


def _list_images(folder: Path, labels: str | None, *, has_classes: bool) -> list[ListedFile]:
    if labels:
        listed = list(_read_labels(Path(labels)))
    elif has_classes:
        listed = list(list_files(folder, SUFFIXES, "images"))
    else:
        listed = list(list_unlabeled(folder, SUFFIXES))
    if not listed:
        advice = "Put those of each class in a folder of its own, or set labels"
        raise DataError(f"{folder} has no images. {advice if has_classes else 'Correct the path'}")
    return listed


def _read_targets(
    form: ImageFormat, listed: Sequence[ListedFile], masks: str | None, ignored: int | None, boxes: str | None
) -> tuple[Tree, dict[str, Any]]:
    """Return the targets of the images in *listed*, and the names of their classes, if there are any."""
    if masks is boxes is None:
        classes = _sort_labels({image.label for image in listed})
        numbers = {name: number for number, name in enumerate(classes)}
        return np.array([numbers[image.label] for image in listed], np.int64), {"class_names": classes}
    targets: dict[str, Tree] = {}
    facts: dict[str, Any] = {}
    if boxes is not None:
        targets, facts = _read_coco(Path(boxes), [image.path for image in listed], form)
    if masks is None:
        return targets, facts
    masks_form = form.model_copy(update={"root": masks, "mode": "mask", "ignored": ignored})
    files = ImageFiles(masks_form, list(_find_masks(Path(masks), listed)))
    return targets | {"mask": files} if boxes is not None else files, facts


def _read_coco(
    path: Path, names: Sequence[str], form: ImageFormat
) -> tuple[dict[str, Ragged], dict[str, Any]]:
    """Return the ``boxes`` and ``labels`` of the images with *names*, and the names of their classes.

    A box is left, top, right and bottom in pixels of the size in *form*, float32. Classes are numbered in the
    order of their ids. Annotations of crowds are left out. Raises `DataError` if *path* is not such a file,
    or lacks an image.
    """
    try:
        with open_regular(path) as file:
            content = json.loads(file.readall())
        categories = sorted(content["categories"], key=lambda category: category["id"])
        numbers = {category["id"]: number for number, category in enumerate(categories)}
        images = {image["file_name"]: image for image in content["images"]}
        rows: dict[Any, list[list[float]]] = {image["id"]: [] for image in content["images"]}
        for annotation in content["annotations"]:
            if not annotation.get("iscrowd"):
                row = [*annotation["bbox"], numbers[annotation["category_id"]]]
                rows[annotation["image_id"]].append(row)
        if missing := [name for name in names if name not in images]:
            raise DataError(
                f"load_data.source.boxes: {path} has no image with the file_name {missing[0]!r}. Add it, or "
                "remove the image"
            )
        sizes = [(images[name]["height"], images[name]["width"]) for name in names]
        targets = build_boxes(
            [rows[images[name]["id"]] for name in names], form.size if form.resize else None, sizes
        )
    except _INVALID_BOXES as error:
        raise DataError(
            f"load_data.source.boxes: {path} is not a file of boxes in COCO's format ({error!r}). Correct it"
        ) from error
    return targets, {"class_names": tuple(str(category["name"]) for category in categories)}


def build_boxes(
    rows: Iterable[Sequence[Sequence[float]]],
    size: tuple[int, int] | None = None,
    sizes: Iterable[tuple[int, int]] = (),
) -> dict[str, Ragged]:
    """Return the ``boxes``, left, top, right and bottom in float32, and the ``labels`` of images.

    Each of *rows*, those of an image, is left, top, width, height and class. With a *size*, height and width,
    to which all images are resized, *sizes* has those of each image before.
    """
    arrays = [np.array(row, np.float64).reshape(-1, 5) for row in rows]
    for array in arrays:
        array[:, 2:4] += array[:, :2]
    if size is not None:
        for array, (height, width) in zip(arrays, sizes, strict=True):
            array[:, :4] *= np.array([size[1] / width, size[0] / height] * 2)
    boxes = Ragged.of([array[:, :4].astype(np.float32) for array in arrays])
    return {"boxes": boxes, "labels": Ragged.of([array[:, 4].astype(np.int64) for array in arrays])}


def _find_masks(folder: Path, listed: Sequence[ListedFile]) -> Iterator[str]:
    """Yield the name of the mask of each image. Raises `DataError` if it is missing."""
    files = {os.path.splitext(file.path)[0]: file.path for file in list_unlabeled(folder, SUFFIXES)}  # noqa: PTH122
    for image in listed:
        stem = os.path.splitext(image.path)[0]  # noqa: PTH122  much faster
        if stem not in files:
            raise DataError(
                f"load_data.source.masks: {folder} has no mask of the image {image.path}. Add a file "
                f"{stem}.png, or remove the image"
            )
        yield files[stem]


def materialize(loaded: Arrays | Splits, kind: Materialize) -> Arrays | Splits:
    """Return *loaded* in the form in which it is stored, after images in files were read.

    Raises `DataError` if an index is requested of data that is not in files, or if an image is corrupt.
    """
    if isinstance(loaded, Arrays) and isinstance(loaded.inputs, ImageFiles):
        return read_images(loaded, kind)
    if kind == "index":
        raise DataError(
            "load_data.materialize: only the source 'image_folder' has files for an index. Set it to tensors"
        )
    return loaded


def read_images(arrays: Arrays, kind: Materialize) -> Arrays:
    """Read each image and mask of *arrays* once: check and hash it, and add the values of images.

    They become tensors in memory or remain files, as *kind* requests; ``auto`` leaves more than
    `MAX_TENSOR_BYTES` in files. Corrupt ones are left out if *arrays* has ``skipped`` in its facts; otherwise
    they raise `DataError`.
    """
    leaves = flatten(arrays.inputs, "inputs") | flatten(arrays.targets, "targets")
    files = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, ImageFiles)}
    size = sum(leaf.nbytes for leaf in files.values())
    is_index = kind == "index" or (kind == "auto" and size > MAX_TENSOR_BYTES)
    facts = dict(arrays.facts)
    scans = {name: _Scan(leaf, is_index=is_index) for name, leaf in files.items()}
    for scan in scans.values():
        scan.run(is_skipping="skipped" in facts)
    rows = np.flatnonzero(np.all([scan.is_intact for scan in scans.values()], axis=0))
    if "skipped" in facts:
        facts["skipped"] = len(arrays) - len(rows)
    if is_index:
        forms = {name: leaf.form for name, leaf in files.items()}
        facts["index"] = forms["inputs"] if len(forms) == 1 else forms
    leaves |= {name: scan.select(rows) for name, scan in scans.items()}
    leaves |= {name: leaf[rows] for name, leaf in leaves.items() if name not in scans}
    if isinstance(arrays.targets, np.ndarray):
        _check_classes(leaves["targets"], facts["class_names"])
    return replace(
        arrays,
        inputs=leaves["inputs"],
        targets=unflatten(leaves, "targets"),
        facts=facts,
        moments=scans["inputs"].moments[:, rows],
        groups=None if arrays.groups is None else arrays.groups[rows],
        splits=None if arrays.splits is None else arrays.splits[rows],
    )


class _Scan:
    """One pass over images: what was found in each file."""

    def __init__(self, files: ImageFiles, *, is_index: bool) -> None:
        """Prepare a pass over *files*; without an index, it stores the decoded images."""
        count, channels = len(files), CHANNELS.get(files.form.mode, 1)
        self.files = files
        self.pixels = None if is_index else np.empty(files.shape, files.dtype)
        self.sizes = np.zeros(count, np.int64)
        self.hashes = np.zeros((count, 32), np.uint8)
        self.moments = np.zeros((4, count, channels), np.int64)
        self.is_intact = np.ones(count, bool)

    def select(self, rows: np.ndarray) -> Any:
        """Return the images at *rows*: decoded, or in their files."""
        if self.pixels is None:
            return replace(self.files, sizes=self.sizes, hashes=self.hashes).select(rows)
        return self.pixels if len(rows) == len(self.files) else self.pixels[rows]

    def run(self, *, is_skipping: bool) -> None:
        """Read all files, with a thread for each CPU. Raises `DataError` for a corrupt one, or skips it."""
        decoder = ImageDecoder(self.files.form)
        with ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS)) as pool:
            for start in range(0, len(self.files), FILES_AT_ONCE):
                rows = range(start, min(start + FILES_AT_ONCE, len(self.files)))
                for row, error in zip(rows, pool.map(partial(self._read, decoder), rows), strict=True):
                    if error is None:
                        continue
                    if not is_skipping:
                        raise _corrupt(error) from error
                    log.warning("skipping an image: %s", error)
                    self.is_intact[row] = False

    def _read(self, decoder: ImageDecoder, row: int) -> UndecodableImageError | None:
        """Store what is in the file of *row*; return the error if it is corrupt."""
        name = self.files.names[row]
        try:
            content = decoder.read(name)
            decoded = decoder.decode(name, content)
        except UndecodableImageError as error:
            return error
        self.sizes[row] = len(content)
        self.hashes[row] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
        values = decoded.reshape(-1, self.moments.shape[2]).astype(np.int64)
        self.moments[:, row] = values.sum(0), (values * values).sum(0), values.min(0), values.max(0)
        if self.pixels is not None:
            put(self.pixels[row], decoded)
        return None


def _read_labels(path: Path) -> Iterator[ListedFile]:
    """Yield the image of each row of the CSV file *path*."""
    try:
        for line, row in read_rows(path):
            if not {"path", "label"} <= row.keys():
                raise DataError(
                    f"{path} must have the columns path and label; found {', '.join(row)}. Write them in its "
                    "first line"
                )
            parts = PurePosixPath(row["path"])
            if not row["path"] or not row["label"] or parts.is_absolute() or ".." in parts.parts:
                raise DataError(
                    f"{path}, line {line}: each row needs a path below the folder and a label; found "
                    f"{row['path']!r} and {row['label']!r}. Correct the row"
                )
            yield ListedFile(row["path"], row["label"], row.get("split"), row.get("group"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"load_data.source.labels: {path} cannot be read: {describe_read_error(error)}"
        ) from error


def _sort_labels(labels: set[str]) -> tuple[str, ...]:
    """Return *labels* in the order of their numbers if all are integers, else in that of the alphabet."""
    if all(label.isascii() and label.isdigit() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def _corrupt(error: UndecodableImageError) -> DataError:
    return DataError(f"{error}. Correct or remove the file, or set load_data.source.corrupt to skip")


def _find_size(decoder: ImageDecoder, names: Sequence[str], corrupt: str) -> tuple[int, int]:
    """Return height and width of the first image that is intact."""
    for name in names:
        try:
            return decoder.read_size(name, decoder.read(name))
        except UndecodableImageError as error:
            if corrupt != "skip":
                raise _corrupt(error) from error
    raise DataError("no image can be decoded. Correct load_data.source.path")


def _check_classes(targets: np.ndarray, names: Sequence[str]) -> None:
    """Raise `DataError` if each image of a class was left out."""
    empty = set(range(len(names))) - set(np.unique(targets).tolist())
    if empty:
        raise DataError(
            f"the class {names[min(empty)]!r} has no intact image. Correct its files, or remove the class"
        )
