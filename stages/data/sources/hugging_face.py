"""The data source ``huggingface``: columns of a dataset of the package ``datasets``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stages.contracts.errors import DataError, closest
from stages.contracts.plugins import load_extra
from stages.data.image_files import ImageDecoder, ImageFormat, put
from stages.data.sources.image_folder import build_boxes
from stages.data.sources.labels import SPLIT_FOLDERS, check_column
from stages.data.sources.texts import encode_columns, to_classes
from stages.data.splits import SPLIT_NAMES, Arrays
from stages.data.trees import LeafKind, Ragged, Tree, list_names, pick
from stages.system.files import open_regular

IMAGE, LABEL = "Image", "ClassLabel"
TEXT = ("string", "large_string", "string_view")
"""Types of columns in the package ``datasets``."""
CLASS_FIELDS = ("category", "label", "labels")
"""Names of the field with the class of an object."""
SPLIT_PREFIXES = {"train": "train", "val": "valid", "dev": "valid", "test": "test"}
"""Our name of a split by the beginning of its name."""
BATCH_ROWS = 1000
"""The number of rows that are converted at a time."""


def huggingface(
    path: str,
    *,
    inputs: str | Sequence[str],
    targets: str | Sequence[str] | None = "label",
    splits: Sequence[str] | None = None,
    config: str | None = None,
    revision: str | None = None,
    size: Sequence[int] | None = None,
    mode: Literal["rgb", "gray"] = "rgb",
    box_format: Literal["xywh", "xyxy"] = "xywh",
    tokenizer: str = "bytes",
    vocabulary_size: int = 10_000,
    max_length: int = 256,
) -> Arrays:
    """Return columns of a dataset that ``save_to_disk`` wrote to the folder *path*, or of one on the hub.

    A column of *inputs* has images, (N, channels, height, width), uint8, of *size* and *mode*; texts, as ids
    of tokens like those of the source ``text``; or numbers and lists of numbers of one shape. One of
    *targets* has classes, numbers, images that are masks, or objects with a ``bbox`` in pixels and a
    ``category`` or ``label``, which are the boxes of the images; None for no targets. Of several names, the
    samples are dicts. All samples are read into memory. *box_format* is that of a ``bbox``: left and top with
    width and height (``xywh``, as COCO), or with right and bottom (``xyxy``).

    *splits* are the names of those to use, such as ``train`` and ``validation_matched``; what they are for
    follows from the beginning of the name. Without it, all are used, and have the names ``train``,
    ``validation`` and ``test`` if there are several. *config* and *revision* choose among those of a dataset
    on the hub. Raises `DataError` if the dataset, a split or a column is missing or has another type.
    """
    package = load_extra("datasets", "huggingface", "the data source 'huggingface'")
    parts = _name_splits(_load(package, path, config, revision), path, splits)
    names, answers = list_names(inputs), [] if targets is None else list_names(targets)
    for argument, chosen in (("inputs", names), ("targets", answers)):
        _check_columns(parts, argument, chosen, path)
    images = ImageFormat(
        root=path, mode=mode, size=(size[0], size[1]) if size else (1, 1), resize=size is not None
    )
    columns = {name: _Column(package, path, name, list(parts.values())) for name in (*names, *answers)}
    texts = {name: columns[name].read_texts() for name in names if columns[name].kind in TEXT}
    ids, facts = encode_columns(texts, tokenizer, vocabulary_size, max_length, path)
    arrays = {name: ids[name] if name in ids else columns[name].read_inputs(images) for name in names}
    kinds: dict[str, LeafKind] = {}
    if not isinstance(inputs, str):
        kinds = {f"inputs.{name}": "tokens" for name in ids}
    pictures = next((columns[name] for name in names if columns[name].kind == IMAGE), None)
    pairs = {name: columns[name].read_targets(images, pictures, box_format) for name in answers}
    classes, class_names = ({name: pair[place] for name, pair in pairs.items()} for place in (0, 1))
    if targets is not None and any(class_names.values()):
        facts["class_names"] = pick(class_names, targets)
    labels = np.repeat(list(parts), [len(rows) for rows in parts.values()]) if len(parts) > 1 else None
    return Arrays(
        pick(arrays, inputs),
        None if targets is None else pick(classes, targets),
        (f"{path}: {inputs}", f"{path}: {targets}"),
        facts,
        splits=labels,
        kinds=kinds,
    )


def _load(package: Any, path: str, config: str | None, revision: str | None) -> Any:
    try:
        if Path(path).is_dir():
            return package.load_from_disk(path)
        return package.load_dataset(path, config, revision=revision)
    except Exception as error:  # the package and its network clients raise errors of many kinds
        raise DataError(
            f"load_data.source.path: {path!r} is neither a folder that save_to_disk wrote nor a dataset that "
            f"can be loaded from the hub ({type(error).__name__}: {error}). Correct the path"
        ) from error


def _name_splits(loaded: Any, path: str, chosen: Sequence[str] | None) -> dict[str, Any]:
    """Return the splits of *loaded*, which is a dataset or a mapping of several, by our names of them."""
    if not isinstance(loaded, Mapping):
        return {"train": loaded}
    if missing := [name for name in chosen or () if name not in loaded]:
        raise DataError(
            f"load_data.source.splits: {path} has no split {missing[0]!r}."
            f"{closest(missing[0], list(loaded))} Splits: {', '.join(loaded)}"
        )
    ours = {name: _our_name(name) if chosen else SPLIT_FOLDERS.get(name) for name in chosen or loaded}
    if None in ours.values() or "train" not in ours.values() or len({*ours.values()}) < len(ours):
        raise DataError(
            f"load_data.source.splits: the splits to use of {path} must be one for training and at most one "
            f"for validation and one for tests; found {', '.join(ours)}. Set it to those to use, for example "
            "[train, validation]"
        )
    names = {split: name for name, split in ours.items()}
    return {split: loaded[names[split]] for split in SPLIT_NAMES if split in names}


def _check_columns(parts: Mapping[str, Any], argument: str, names: Sequence[str], path: str) -> None:
    """Raise `DataError` if a split lacks one of *names*, the columns of an *argument*, or has a corrupt one.

    Arrow trusts what a file states, and would crash.
    """
    for split, part in parts.items():
        where = f"{path}, split {split}" if len(parts) > 1 else path
        for name in names:
            check_column(list(part.features), argument, name, where)
            try:
                part.data.column(name).validate(full=True)
            except ValueError as error:  # Arrow's is one
                raise DataError(f"{where}: the column {name!r} is corrupt: {error}. Save it again") from error


def _our_name(name: str) -> str | None:
    """Return our name of the split *name*, such as valid for ``validation_matched``; None if unclear."""
    return next((split for prefix, split in SPLIT_PREFIXES.items() if name.startswith(prefix)), None)


def _type_of_items(feature: Any) -> Any:
    """Return the type of the items of a list with the type *feature*, or *feature* if it is not a list."""
    return getattr(feature, "feature", feature)


@dataclass(frozen=True)
class _Column:
    """A column of all splits."""

    package: Any
    path: str
    name: str
    splits: Sequence[Any]

    @property
    def feature(self) -> Any:
        """The type of the column in the package ``datasets``."""
        return self.splits[0].features[self.name]

    @property
    def kind(self) -> str:
        """The type of the values: ``Image``, ``ClassLabel``, or that of Arrow, such as ``string``."""
        name = type(self.feature).__name__
        return str(self.feature.dtype) if name == "Value" else name

    @property
    def objects(self) -> Any:
        """The types of the fields of objects with boxes; None for another column."""
        fields = _type_of_items(self.feature)
        return fields if isinstance(fields, Mapping) and "bbox" in fields else None

    @property
    def where(self) -> str:
        """The column in error messages."""
        return f"{self.path}: the column {self.name!r}"

    def read_inputs(self, images: ImageFormat) -> np.ndarray:
        """Return the values, which are images or numbers."""
        return self.read_images(images) if self.kind == IMAGE else self.read_numbers()

    def read_images(self, form: ImageFormat) -> np.ndarray:
        """Return the decoded images. Raises `DataError` if one is corrupt or of another size."""
        count = sum(map(len, self.splits))
        pixels = np.empty((count, *form.shape), np.uint8)
        for number, (name, content) in enumerate(self._contents()):
            if number == 0 and not form.resize:
                form = form.model_copy(update={"size": ImageDecoder(form).read_size(name, content)})
                pixels = np.empty((count, *form.shape), np.uint8)
            put(pixels[number], ImageDecoder(form).decode(name, content))
        return pixels

    def read_sizes(self, form: ImageFormat) -> list[tuple[int, int]]:
        """Return height and width of each image."""
        decoder = ImageDecoder(form)
        return [decoder.read_size(name, content) for name, content in self._contents()]

    def read_boxes(
        self, box_format: str, images: ImageFormat, pictures: "_Column | None"
    ) -> tuple[dict[str, Ragged], tuple[str, ...] | None]:
        """Return the boxes and the classes of objects, as `build_boxes` does, and the names of the classes.

        *images* is the form of the *pictures* with the objects. Raises `DataError` if an object has no class.
        """
        key = next((name for name in CLASS_FIELDS if name in self.objects), None)
        if key is None:
            raise DataError(
                f"{self.where} has objects with the fields {', '.join(self.objects)}; one of "
                f"{', '.join(CLASS_FIELDS)} must be their class. Rename the field"
            )
        rows = []
        for value in self._values(self.splits):
            pairs = (
                [(each["bbox"], each[key]) for each in value]
                if isinstance(value, list)
                else zip(value["bbox"], value[key], strict=True)
            )
            rows.append([[*box, label] for box, label in pairs])
        if box_format == "xyxy":
            rows = [
                [[x, y, right - x, bottom - y, label] for x, y, right, bottom, label in row] for row in rows
            ]
        names = getattr(_type_of_items(self.objects[key]), "names", None)
        resized = (images.size, pictures.read_sizes(images)) if pictures and images.resize else ()
        return build_boxes(rows, *resized), names and tuple(names)

    def read_texts(self) -> list[str]:
        """Return the texts."""
        return [str(value) for value in self._values(self.splits)]

    def read_numbers(self) -> np.ndarray:
        """Return an array with a row for each sample. Raises `DataError` if their shapes differ."""
        try:
            numbers = np.concatenate([np.asarray(rows) for rows in self._batches()])
        except ValueError as error:
            raise DataError(f"{self.where} has values of different shapes. Choose another column") from error
        if numbers.dtype.kind not in "biuf":
            raise DataError(
                f"{self.where} has the type {self.feature}; inputs and targets are "
                "images, texts, classes, or numbers of one shape. Choose another column"
            )
        return numbers[:, None] if numbers.ndim == 1 else numbers

    def read_targets(
        self, images: ImageFormat, pictures: "_Column | None", box_format: str
    ) -> tuple[Tree, tuple[str, ...] | None]:
        """Return the boxes, classes, numbers or masks, and the names of the classes if there are any."""
        if self.objects is not None:
            return self.read_boxes(box_format, images, pictures)
        if self.kind == IMAGE:
            return self.read_images(images.model_copy(update={"mode": "mask"})), None
        if self.kind in TEXT:
            return to_classes(self.read_texts())
        values = self.read_numbers()
        names = tuple(self.feature.names) if self.kind == LABEL else None
        return (values[:, 0] if values.shape[1:] == (1,) else values), names

    def _values(self, splits: Sequence[Any]) -> Iterator[Any]:
        for split in splits:
            for number, value in enumerate(split[self.name]):
                if value is None:
                    raise DataError(f"{self.where} has no value in row {number}, counted from 0. Correct it")
                yield value

    def _batches(self) -> Iterator[Any]:
        for split in self.splits:
            rows = split.select_columns([self.name]).with_format("numpy")
            for batch in rows.iter(batch_size=BATCH_ROWS):
                yield batch[self.name]

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name, in errors, and the content of each image."""
        files = [rows.cast_column(self.name, self.package.Image(decode=False)) for rows in self.splits]
        for number, row in enumerate(self._values(files)):
            yield f"image {number} of {self.name}", self._content(row, number)

    def _content(self, row: Mapping[str, Any], number: int) -> bytes:
        if row.get("bytes"):
            return bytes(row["bytes"])
        try:
            with open_regular(str(row["path"])) as file:
                return file.readall()
        except OSError as error:
            raise DataError(f"{self.where}: image {number} cannot be read: {error}") from error
