"""Configuration of augmentation: built-in kinds for images, and other transforms by import path."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Tag

from stages.contracts.config import Config, Use, select_by_kind
from stages.contracts.fields import CountFromZero, Finite, Fraction, NonNegative, Range, Size
from stages.contracts.plugins import name_validator

AUGMENTATIONS = {
    "random_crop": "stages.data.augment.augmentation_config:RandomCrop",
    "horizontal_flip": "stages.data.augment.augmentation_config:HorizontalFlip",
    "vertical_flip": "stages.data.augment.augmentation_config:VerticalFlip",
    "random_erasing": "stages.data.augment.augmentation_config:RandomErasing",
    "color_jitter": "stages.data.augment.augmentation_config:ColorJitter",
}


class RandomCrop(Config):
    """Pad each image on all sides, and cut out a part of it at a random position."""

    kind: Literal["random_crop"] = "random_crop"
    padding: CountFromZero = 0
    """The pixels that are added on each side before the crop."""
    size: Size | None = None
    """The height and width of the result, or one number for both; None: those of the image."""
    fill: Finite = 0.0
    """The value of the added pixels, in the units of the stored image."""


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
    Annotated[RandomCrop, Tag("random_crop")]
    | Annotated[HorizontalFlip, Tag("horizontal_flip")]
    | Annotated[VerticalFlip, Tag("vertical_flip")]
    | Annotated[RandomErasing, Tag("random_erasing")]
    | Annotated[ColorJitter, Tag("color_jitter")]
    | Annotated[Use, AfterValidator(name_validator("augmentation", AUGMENTATIONS)), Tag("use")],
    select_by_kind(AUGMENTATIONS),
    BeforeValidator(_accept_bare_name),
]
