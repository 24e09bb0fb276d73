"""Configuration of data sources, normalization, batchers and augmentation."""

from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stages.contracts.config import Config, Use, select_by_kind
from stages.contracts.fields import (
    DATA_PATH,
    OPTIONAL,
    Character,
    CountFromZero,
    DataPath,
    Finite,
    Flag,
    Fraction,
    Names,
    NonNegative,
    Range,
    Size,
    Spellings,
    Text,
    Texts,
    Units,
    integer,
)
from stages.contracts.plugins import name_validator

BUILT_IN = {
    "dataset": "stages.data.sources.torch_datasets:dataset",
    "digits": "stages.data.sources:digits",
    "huggingface": "stages.data.sources.hugging_face:huggingface",
    "idx": "stages.data.sources:idx",
    "image_folder": "stages.data.sources.image_folder:image_folder",
    "npy": "stages.data.sources:npy",
    "npz": "stages.data.sources:npz",
    "table": "stages.data.sources.tables:table",
    "text": "stages.data.sources.texts:text",
}


BATCHERS = {
    "normalize": "stages.data.batchers:NormalizeBatcher",
    "pad": "stages.data.batchers:PadBatcher",
}


BatcherConfig = Annotated[Use, AfterValidator(name_validator("batcher", BATCHERS))]
AUGMENTATIONS = {
    "random_crop": "stages.data.config:RandomCrop",
    "horizontal_flip": "stages.data.config:HorizontalFlip",
    "vertical_flip": "stages.data.config:VerticalFlip",
    "random_erasing": "stages.data.config:RandomErasing",
    "color_jitter": "stages.data.config:ColorJitter",
}


class Digits(Config):
    """The 1,797 handwritten digits of 8×8 pixels in scikit-learn (UCI, 1998)."""

    kind: Literal["digits"] = "digits"
    path: None = None
    """Always None; the key exists so that ``-S load_data.source.path=…`` can set it for another kind."""


class Idx(Config):
    """A folder with the four IDX files of MNIST, optionally gzipped; the test files are the valid split."""

    kind: Literal["idx"]
    path: Text
    """The folder, relative to the root of the project or absolute."""


class Npz(Config):
    """A NumPy archive: ``x_train, y_train, x_test, y_test``, or ``inputs, targets``, which is split.

    Arrays with other names are named by ``inputs`` and ``targets``, and are split.
    """

    kind: Literal["npz"]
    path: Text
    """The file, relative to the root of the project or absolute."""
    inputs: Names | None = OPTIONAL
    """The name of the array of inputs, or the names of several, whose samples are dicts."""
    targets: Names | None = OPTIONAL
    """The name of the array of targets, or the names of several; with ``inputs``, null for none."""

    @model_validator(mode="after")
    def _check_inputs(self) -> Self:
        if self.targets is not None and self.inputs is None:
            raise ValueError("targets names an array, so inputs must name one too")
        return self


class Npy(Config):
    """Two NumPy arrays in files of their own, mapped into memory, so that load-data needs little of it."""

    kind: Literal["npy"]
    inputs: DataPath
    """The file with the inputs, (N, …), relative to the root of the project or absolute."""
    targets: DataPath
    """The file with the targets: integers for classes, (N,) or (N, T), or floats for regression, (N, …)."""


class ImageFolder(Config):
    """Images in a folder for each class, with a CSV file of labels, or with masks or boxes.

    They need the extra ``images``. An image is turned as its EXIF orientation asks for; transparency is
    dropped.
    """

    kind: Literal["image_folder"]
    path: Text
    """The folder, relative to the root of the project or absolute; its folders have the names of classes.

    A folder with only ``train``, ``valid`` (or ``val``) and ``test`` has the folders of classes in these.
    """
    labels: Annotated[Text | None, DATA_PATH] = None
    """A CSV file with the columns ``path``, relative to the folder, and ``label``; or null. The columns
    ``split`` (``train``, ``valid`` or ``test``) and ``group``, for example a person, are optional."""
    size: tuple[Units, Units] | None = None
    """Height and width to which other images are resized; null if all images have one size."""
    mode: Literal["rgb", "gray"] = "rgb"
    """``rgb`` for three channels, ``gray`` for one."""
    corrupt: Literal["error", "skip"] = "error"
    """``skip`` leaves files out that are missing or corrupt; ``dataset.json`` has their number."""
    masks: Annotated[Text | None, DATA_PATH] = OPTIONAL
    """A folder with a mask for each image, a file of the same name up to its ending, such as ``.png``: the
    class of each pixel. The folders in ``path`` are then not classes."""
    ignored: Annotated[int | None, integer(0, 255)] = OPTIONAL
    """The value of masks that is not a class, such as 255; losses and metrics ignore its pixels."""
    boxes: Annotated[Text | None, DATA_PATH] = OPTIONAL
    """A JSON file in COCO's format with the boxes and the classes of the objects in the images."""

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        if self.labels and (self.masks or self.boxes):
            raise ValueError("set either labels, or masks and boxes")
        if self.ignored is not None and self.masks is None:
            raise ValueError("ignored is a value of masks, so set masks too")
        return self


class Table(Config):
    """Columns of CSV, Parquet or Arrow files, read in batches of rows; needs the extra ``tables``."""

    kind: Literal["table"]
    path: Text
    """The file, whose name ends in that of its format, or a folder of files with the same columns."""
    valid_path: Annotated[Text | None, DATA_PATH] = None
    """The file or the folder of the valid split; null for none."""
    test_path: Annotated[Text | None, DATA_PATH] = None
    """The file or the folder of the test split; null for none."""
    split: Text | None = None
    """A column with the split of each row: ``train``, ``valid`` or ``test``."""
    group: Text | None = None
    """A column whose equal values keep rows in one split, for example of a person."""
    target: Names
    """The column to predict, or several: text or integers are classes, floats and decimals are numbers."""
    features: Texts | None = None
    """Names of columns, or patterns of a shell such as ``x_*``; null for all columns except the target.

    An index that pandas has written is a feature only if its name is in the list.
    """
    categorical: Texts = ()
    """Names or patterns of the features that are categories and not numbers."""
    encoding: Literal["one_hot", "codes"] = "one_hot"
    """``one_hot``: a feature of 0 and 1 for each category; ``codes``: the number of the category, sorted."""
    missing: Literal["error", "drop", "mean", "constant"] = "error"
    """The rule for missing values: an error, no sample, the mean of the column in the table, or ``fill``."""
    fill: Finite = 0.0
    """The value for ``missing: constant``."""
    task: Literal["classification", "regression"] | None = None
    """``regression`` predicts integers as numbers; null for the type of the target."""
    delimiter: Character | None = None
    """In CSV files, the character between two values; null: a comma, or a tab in ``.tsv`` files."""
    decimal: Literal[".", ","] = "."
    """In CSV files, the character before the decimals of a number."""
    missing_values: Spellings | None = None
    """In CSV files, the texts that are missing values, such as ``["", "?"]``; null: those of Arrow, such as
    an empty text, ``NA``, ``NaN`` and ``null``."""
    header: Flag = True
    """Whether the first line of a CSV file has the names of the columns; if not, they are ``f0``, ``f1`` …"""


class TextFiles(Config):
    """Texts and their classes, as ids of tokens; needs the extra ``text``, except for bytes."""

    kind: Literal["text"]
    path: Text
    """A CSV, TSV or JSON lines file, or a folder with a folder of ``.txt`` files for each class.

    A folder with only ``train``, ``valid`` (or ``val``) and ``test`` has the folders of classes in these.
    """
    valid_path: Annotated[Text | None, DATA_PATH] = None
    """The file or the folder of the valid split; null for none."""
    test_path: Annotated[Text | None, DATA_PATH] = None
    """The file or the folder of the test split; null for none."""
    split: Text | None = None
    """The column, or the key, with the split of each text: ``train``, ``valid`` or ``test``."""
    group: Text | None = None
    """The column, or the key, whose equal values keep texts in one split, for example of an author."""
    text: Text = "text"
    """The column, or the key of JSON, with the text."""
    label: Text = "label"
    """The column, or the key of JSON, with the class: an integer or a name."""
    tokenizer: Text = "bytes"
    """``bytes``; ``words`` or ``bpe``, whose vocabulary is trained on all texts; or a ``tokenizer.json``."""
    vocabulary_size: Annotated[int, integer(3, 10_000_000)] = 10_000
    """Largest number of tokens in a trained vocabulary, with those for padding (0) and unknown words (1)."""
    max_length: Units = 256
    """The number of tokens after which a text is cut; ``dataset.json`` has the number of cut texts."""


class HuggingFace(Config):
    """Columns of a dataset of the package ``datasets``; needs the extra ``huggingface``."""

    kind: Literal["huggingface"]
    path: Text
    """The folder that ``save_to_disk`` wrote, or the name of a dataset on the hub."""
    inputs: Names
    """The column of the inputs, or several: images, texts, numbers, or lists of numbers of one shape."""
    targets: Names | None = "label"
    """The column to predict, or several: classes, numbers, images that are masks, or objects with a ``bbox``;
    null for none."""
    splits: Texts | None = None
    """The splits to use, such as ``[train, validation_matched]``, which must begin with ``train``, ``val`` or
    ``dev``, and ``test``; null: all, which must be ``train``, ``validation`` and ``test``."""
    config: Text | None = None
    """The configuration of a dataset on the hub."""
    revision: Text | None = None
    """The commit or tag of a dataset on the hub; name one, because DVC does not track the hub."""
    size: tuple[Units, Units] | None = None
    """Height and width to which images are resized; null if all have one size."""
    mode: Literal["rgb", "gray"] = "rgb"
    """``rgb`` for images of three channels, ``gray`` for one."""
    box_format: Literal["xywh", "xyxy"] = "xywh"
    """The numbers of a ``bbox``: left, top, width and height, or left, top, right and bottom."""
    tokenizer: Text = "bytes"
    """For texts, as that of the source ``text``."""
    vocabulary_size: Annotated[int, integer(3, 10_000_000)] = 10_000
    """For texts, as that of the source ``text``."""
    max_length: Units = 256
    """For texts, as that of the source ``text``."""


class TorchDatasets(Config):
    """Datasets of PyTorch, whose samples are stored as tensors, or read when they are needed."""

    kind: Literal["dataset"]
    factory: Annotated[Use, AfterValidator(name_validator("dataset", {}))]
    """The import path of a function or a class with its arguments, which returns one dataset, or several."""
    lazy: Annotated[Flag, Field(exclude_if=not_)] = False
    """For datasets larger than the memory: whether ``fit`` reads the samples of a map-style dataset when it
    needs them, and load-data stores those of an iterable one on the disk.
    """


class NormalizationConfig(Config):
    """The normalization of inputs, whose numbers are computed over the train split."""

    kind: Literal["mean_std", "min_max", "none"] = "mean_std"
    """``mean_std``: to mean 0 and standard deviation 1; ``min_max``: to the range 0 to 1; or ``none``."""
    per: Literal["dataset", "channel"] = "dataset"
    """``dataset``: the same numbers for all values; ``channel``: numbers for each index of the first axis of
    a sample, which is the channel of an image (C, H, W) or the column of a table (F,)."""


Source = Annotated[
    Digits
    | Idx
    | Npz
    | Npy
    | ImageFolder
    | Table
    | TextFiles
    | HuggingFace
    | TorchDatasets
    | Annotated[Use, AfterValidator(name_validator("source", BUILT_IN))],
    select_by_kind(BUILT_IN),
]


class RandomCrop(Config):
    """Pad each image on all sides, and cut out a part of it at a random position."""

    kind: Literal["random_crop"] = "random_crop"
    padding: CountFromZero = 0
    """The pixels that are added on each side before the crop."""
    size: Size | None = None
    """The height and width of the result, or one number for both; None: those of the image."""
    fill: Finite = 0.0
    """The value of the added pixels, in the units of the stored image."""
    mask_fill: Annotated[int, integer(-100, 10_000_000)] = Field(default=0, exclude_if=not_)
    """The class of the added pixels in masks; -100, in masks of signed integers, is ignored by losses."""


class HorizontalFlip(Config):
    """Flip each image from left to right with probability *p*."""

    kind: Literal["horizontal_flip"] = "horizontal_flip"
    p: Fraction = 0.5


class VerticalFlip(Config):
    """Flip each image upside down with probability *p*."""

    kind: Literal["vertical_flip"] = "vertical_flip"
    p: Fraction = 0.5


class RandomErasing(Config):
    """Set a random rectangle of each image to one value, with probability *p*.

    Source: Zhong et al., "Random Erasing Data Augmentation", 2017. A rectangle that would be higher or wider
    than the image is cut to its size.
    """

    kind: Literal["random_erasing"] = "random_erasing"
    p: Fraction = 0.5
    scale: Range = (0.02, 0.33)
    """The smallest and the largest area, as a share of the image."""
    ratio: Range = (0.3, 3.3)
    """The smallest and the largest ratio of width to height."""
    value: Finite = 0.0
    """The value of the rectangle, in the units of the stored image."""


class ColorJitter(Config):
    """Change brightness and contrast of each image by random factors, in this order.

    Integers are rounded and limited to the range of their dtype; floats are not limited.
    """

    kind: Literal["color_jitter"] = "color_jitter"
    brightness: NonNegative = 0.0
    """All values are multiplied by a factor from ``max(0, 1 - brightness)`` to ``1 + brightness``."""
    contrast: NonNegative = 0.0
    """Differences from the mean of the image are multiplied by a factor from ``max(0, 1 - contrast)`` to
    ``1 + contrast``."""


BuiltIn = RandomCrop | HorizontalFlip | VerticalFlip | RandomErasing | ColorJitter


def _accept_bare_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


AugmentationConfig = Annotated[
    BuiltIn | Annotated[Use, AfterValidator(name_validator("augmentation", AUGMENTATIONS))],
    select_by_kind(AUGMENTATIONS),
    BeforeValidator(_accept_bare_name),
]
