"""Images in files: an array of them, of which those that are requested are decoded."""

import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from stages.contracts.config import Config
from stages.contracts.errors import DataError
from stages.contracts.fields import OPTIONAL
from stages.contracts.outputs import IGNORED_TARGET
from stages.contracts.plugins import load_extra
from stages.records.limits import Limits
from stages.system.files import open_regular

CHANNELS = {"rgb": 3, "gray": 1}
_PILLOW_MODES = {"rgb": "RGB", "gray": "L"}
_WIDE_MODES = ("I", "F")
"""Beginnings of Pillow's names of modes of 16 and 32 bits, whose conversion to 8 bits cuts values off."""
_MASK_MODES = ("1", "L", "P")
_UINT8_MAX = 255
_ORIENTATION = 0x0112
"""The tag of EXIF with the turns and reflections with which a viewer shows an image."""


class ImageFormat(Config):
    """The form in which images are decoded."""

    root: str
    """The folder to which the paths of the files are relative."""
    mode: Literal["rgb", "gray", "mask"]
    """``mask``: the values or the palette indices of one channel, which are classes."""
    size: tuple[int, int]
    """Height and width."""
    resize: bool
    """True if other images are resized to that size; they are an error otherwise."""
    ignored: int | None = OPTIONAL
    """The value in masks that becomes -100, which losses and metrics ignore."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image: channels, height, width; of a mask: height, width."""
        return self.size if self.mode == "mask" else (CHANNELS[self.mode], *self.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a decoded value: uint8, or int16 for masks with ignored values."""
        return np.dtype(np.uint8 if self.ignored is None else np.int16)


class UndecodableImageError(DataError):
    """A file that is not an intact image, or is missing."""


class ImageDecoder:
    """A decoder of image files. It needs Pillow, of the extra ``images``."""

    def __init__(self, form: ImageFormat) -> None:
        self._form = form
        self._pillow = load_extra("PIL.Image", "images", "the data source 'image_folder'")

    def read(self, name: str) -> bytes:
        """Return the content of the file *name*. Raises `UndecodableImageError` if it cannot be read."""
        path = os.path.join(self._form.root, name)  # noqa: PTH118  much faster than pathlib
        try:
            with open_regular(path) as file:
                return file.readall()
        except OSError as error:
            raise UndecodableImageError(f"{path} cannot be read: {error.strerror}") from error

    def decode(self, name: str, content: bytes) -> np.ndarray:
        """Return the image in *content*, of the file *name*: (height, width) or (height, width, 3), uint8.

        It is turned as its EXIF orientation asks for; the colors of transparent pixels are kept.

        Raises `UndecodableImageError` if it is not an intact image, and `DataError` if it has another size
        or more than 8 bits per channel.
        """
        form, path = self._form, Path(self._form.root, name)
        image = self._open(path, content)
        if form.mode == "mask":
            return self._decode_mask(path, image)
        if image.mode != _PILLOW_MODES[form.mode]:
            image = image.convert(_PILLOW_MODES[form.mode])
        return np.asarray(self._resize(path, image, self._pillow.Resampling.BILINEAR))

    def _decode_mask(self, path: Path, image: Any) -> np.ndarray:
        if image.mode not in _MASK_MODES:
            raise DataError(
                f"{path} is not a mask: its mode is {image.mode}, and a mask has one channel, whose values "
                "or palette indices are classes. Convert it"
            )
        classes = np.asarray(self._resize(path, image, self._pillow.Resampling.NEAREST), self._form.dtype)
        if self._form.ignored is None:
            return classes
        return np.where(classes == self._form.ignored, np.int16(IGNORED_TARGET), classes)

    def _resize(self, path: Path, image: Any, resampling: Any) -> Any:
        """Return *image* in the size of the form. Raises `DataError` if it has another one."""
        form = self._form
        height, width = form.size
        if image.size != (width, height):
            if not form.resize:
                raise DataError(
                    f"{path} has {image.size[1]}×{image.size[0]} pixels, but an earlier image has "
                    f"{height}×{width}. Set load_data.source.size to [{height}, {width}], for example"
                )
            return image.resize((width, height), resampling)
        return image

    def read_size(self, name: str, content: bytes) -> tuple[int, int]:
        """Return height and width of the image in *content*, of the file *name*.

        Raises `UndecodableImageError` if it is not an intact image.
        """
        image = self._open(Path(self._form.root, name), content)
        return image.height, image.width

    def _open(self, path: Path, content: bytes) -> Any:
        try:
            image = self._pillow.open(io.BytesIO(content))
            _check_safe(image, len(content))
            is_wide = image.mode.startswith(_WIDE_MODES) or any(map(_has_wide_values, image.tile))
            image.load()
            if not is_wide and image.getexif().get(_ORIENTATION, 1) != 1:
                image = load_extra("PIL.ImageOps", "images", "an image").exif_transpose(image)
        except self._pillow.UnidentifiedImageError as error:  # its text has an address in memory
            raise UndecodableImageError(
                f"{path} cannot be decoded: it is not an image of a known format"
            ) from error
        except Exception as error:  # Pillow raises errors of many kinds for corrupt files
            raise UndecodableImageError(f"{path} cannot be decoded: {error}") from error
        if is_wide:
            raise DataError(
                f"{path} has more than 8 bits per channel, which would be cut off. Convert the images to 8 "
                "bits, or to an array for the source 'npy'"
            )
        return image


def _has_wide_values(tile: Any) -> bool:
    """Return whether a part of an image, as Pillow describes it before it loads it, has 16 bits per channel.

    The mode of an image in color is then the same as that of 8 bits.
    """
    codec, _, _, arguments = tile
    names = arguments if isinstance(arguments, tuple) else (arguments,)
    if codec.startswith("ppm"):
        return isinstance(names[-1], int) and names[-1] > _UINT8_MAX
    return ";16" in str(names[0])


def _check_safe(image: Any, size: int) -> None:
    """Raise `ValueError` if *image* is a program, or expands more than a record of *size* bytes may."""
    if image.format == "EPS":
        raise ValueError("it is a PostScript program. Convert it to PNG")
    decoded, limit = image.width * image.height * len(image.getbands()), Limits.for_size(size).content
    if decoded > limit:
        raise ValueError(
            f"it would expand to {decoded:,} bytes, and a file of this size to {limit:,} at most"
        )


@dataclass(frozen=True)
class FileNames(Sequence[str]):
    """Names of files, stored as two arrays, which processes share without copies."""

    text: np.ndarray
    """All names in UTF-8, (bytes,), uint8."""
    ends: np.ndarray
    """The position after each name in *text*, (N,), int64."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        """Return *names* as two arrays."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        start = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[start : int(self.ends[index])].tobytes())


class FileArray(ABC):
    """An array whose rows are read when they are requested."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the array; the first axis is that of the samples."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""

    @abstractmethod
    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """The number of bytes in a value."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The number of bytes in all values."""
        return math.prod(self.shape) * self.itemsize

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:  # NumPy's signature
        return self[:].astype(dtype or self.dtype, copy=False)


@dataclass(frozen=True)
class ImageFiles(FileArray):
    """Images in files as an array of the shape (N, channels, height, width), decoded when they are read."""

    form: ImageFormat
    names: Sequence[str]
    """The paths of the files, relative to the root."""
    sizes: np.ndarray | None = None
    """The number of bytes in each file, (N,), int64; None before the files were read."""
    hashes: np.ndarray | None = None
    """The SHA-256 of each file, (N, 32), uint8; None before the files were read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array: that of images, or of masks."""
        return len(self.names), *self.form.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.form.dtype

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the images at *rows*.

        Raises `DataError` with the path of a file that is missing, corrupt, or of another size in bytes than
        load-data read.
        """
        chosen = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        images = np.empty((len(chosen), *self.form.shape), self.dtype)
        decoder = ImageDecoder(self.form)
        for image, row in zip(images, chosen.tolist(), strict=True):
            name = self.names[row]
            content = decoder.read(name)
            if self.sizes is not None and len(content) != self.sizes[row]:
                raise DataError(
                    f"{self.form.root}/{name} has {len(content)} bytes, but load-data read "
                    f"{self.sizes[row]}. Run load-data again"
                )
            try:
                put(image, decoder.decode(name, content))
            except UndecodableImageError as error:
                raise DataError(f"{error}. Correct or remove the file") from error
        return images

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the names, sizes and hashes of the files as arrays. The files must have been read."""
        names = FileNames.of(self.names)
        arrays = {"names": names.text, "name_ends": names.ends, "sizes": self.sizes, "hashes": self.hashes}
        return {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def from_arrays(cls, form: ImageFormat, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the files that `to_arrays` returned as *arrays*. Raises `KeyError` if one is missing."""
        names = FileNames(arrays["names"], arrays["name_ends"])
        return cls(form, names, arrays["sizes"], arrays["hashes"])

    def select(self, rows: np.ndarray) -> "ImageFiles":
        """Return the images at *rows*."""
        return replace(
            self,
            names=[self.names[row] for row in rows],
            sizes=None if self.sizes is None else self.sizes[rows],
            hashes=None if self.hashes is None else self.hashes[rows],
        )


def put(image: np.ndarray, decoded: np.ndarray) -> None:
    """Copy a *decoded* image to *image*, (channels, height, width), or a mask to one, (height, width)."""
    image[...] = decoded.transpose(2, 0, 1) if decoded.ndim == 3 else decoded
