"""Readers of array files: NumPy arrays and archives, and IDX files, optionally compressed with gzip."""

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from stages.contracts.errors import DataError
from stages.data.raw_arrays import check_type, map_file
from stages.records.limits import Limits
from stages.system.files import open_regular

CHUNK_BYTES = 1 << 20
"""The number of bytes read at a time."""
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NPY_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_INVALID_HEADER = (ValueError, KeyError, SyntaxError, TypeError, TokenError, RecursionError, MemoryError)
"""What numpy raises for a header that is not a dictionary, or has a false length."""
_UNREADABLE = (EOFError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)


def read_npz(path: Path, *choices: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the arrays of archive *path* that the first of *choices* names; no other array is read.

    Never unpickles. Raises `DataError` if *path* is not an intact archive of numbers, or lacks an array
    of every choice.
    """
    if not path.is_file():
        raise DataError(f"load_data.source.path: there is no file {str(path)!r}. Correct the path")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for names in choices:
                if set(names) <= members.keys():
                    return {name: _read_member(archive, members[name], f"{path}: {name}") for name in names}
    except _UNREADABLE as error:
        raise DataError(f"{path} {_describe_mistake(path, error)}") from error
    raise DataError(
        f"{path} must hold {', or '.join(', '.join(names) for names in choices)}; "
        f"found {', '.join(sorted(members)) or 'no array'}. Save it with np.savez under these names"
    )


def map_npy(path: Path, key: str) -> np.ndarray:
    """Return the array in the .npy file *path*, mapped into memory. Never unpickles.

    *key* names the param with the path. Raises `DataError` if *path* is not an intact array of numbers.
    """
    if not path.is_file():
        raise DataError(f"{key}: there is no file {str(path)!r}. Correct the path")
    try:
        with path.open("rb") as file:
            shape, is_fortran, dtype = _read_npy_header(file, str(path))
            check_type(dtype, str(path))
            offset = file.tell()
            _check_size(str(path), shape, dtype, path.stat().st_size - offset)
            array = map_file(file, offset, shape[::-1] if is_fortran else shape, dtype)
        return array.T if is_fortran else array
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}). Check its permissions") from error


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the array in IDX file *path*, in native byte order.

    Raises `DataError` if the file is not intact or does not have *dimensions* axes.
    """
    head = 4 + 4 * dimensions
    try:
        with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            start = file.read(head)
            if (
                len(start) < head
                or start[:2] != b"\0\0"
                or start[2] not in _IDX_TYPES
                or start[3] != dimensions
            ):
                raise DataError(
                    f"{path} is not an IDX file of {dimensions} dimensions; it begins with {start[:4]!r}. "
                    "Download it again"
                )
            shape = tuple(np.frombuffer(start, ">u4", dimensions, 4).tolist())
            dtype = np.dtype(_IDX_TYPES[start[2]])
            limit = path.stat().st_size
            if path.suffix == ".gz":
                limit = math.prod(shape) * dtype.itemsize
                _check_expansion(limit, path, str(path))
            array = _read_array(file, shape, dtype, limit=limit, name=str(path))
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}). Download it again") from error
    return array.byteswap(inplace=True).view(dtype.newbyteorder("="))  # IDX numbers are big-endian


def _check_expansion(size: int, path: Path, name: str) -> None:
    """Raise `DataError` if *size* bytes are more than a record as large as the file *path* may expand to."""
    limit = Limits.for_size(path.stat().st_size).content
    if size > limit:
        raise DataError(
            f"{name} would expand to {size:,} bytes, and a file of this size may expand to {limit:,}. If you "
            "trust it, save it without compression"
        )


def _read_member(archive: zipfile.ZipFile, member: str, name: str) -> np.ndarray:
    try:
        with archive.open(member) as file:
            shape, is_fortran, dtype = _read_npy_header(file, name)
            check_type(dtype, name)  # before reading, since objects would have to be unpickled
            limit = archive.getinfo(member).file_size
            _check_expansion(limit, Path(str(archive.filename)), name)
            array = _read_array(file, shape[::-1] if is_fortran else shape, dtype, limit=limit, name=name)
            return array.T if is_fortran else array
    except _UNREADABLE as error:
        raise DataError(f"{name} is truncated or corrupt ({error}). Save the archive again") from error


def _read_npy_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file, without numpy's messages, which recommend to load pickles."""
    try:
        version = npy.read_magic(file)
        if version == (3, 0):  # only for names of fields beyond Latin-1
            raise DataError(
                f"{name} must be numbers of at most 64 bits; found a structured array. "
                "Save each field as an array"
            )
        return _NPY_HEADERS[version](file)
    except _INVALID_HEADER:
        raise DataError(
            f"{name} is not a NumPy array: its header is invalid. Save it with np.save or np.savez"
        ) from None


def _read_array(
    file: IO[bytes] | gzip.GzipFile, shape: tuple[int, ...], dtype: np.dtype[Any], *, limit: int, name: str
) -> np.ndarray:
    """Return an array of *shape* read from the rest of *file*, which has *limit* bytes at most."""
    size = _check_size(name, shape, dtype, limit)
    try:
        content = np.empty(size, np.uint8)
    except MemoryError as error:
        raise DataError(f"{name} takes {size:,} bytes, more than can be allocated. Use less data") from error
    position = 0
    while chunk := file.read(CHUNK_BYTES):
        if position + len(chunk) > size:
            raise DataError(_describe_size(name, shape, size, "more"))
        content[position : position + len(chunk)] = np.frombuffer(chunk, np.uint8)
        position += len(chunk)
    if position < size:
        raise DataError(_describe_size(name, shape, size, str(position)))
    return content.view(dtype).reshape(shape)


def _check_size(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], limit: int) -> int:
    """Return the bytes of an array. Raises `DataError` if they are more than *limit*."""
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > limit:
        raise DataError(_describe_size(name, shape, size, f"at most {limit}"))
    return size


def _describe_size(name: str, shape: tuple[int, ...], size: int, found: str) -> str:
    return (
        f"{name} is truncated or corrupt: shape {shape} takes {size} bytes; found {found}. "
        "Download or save the file again"
    )


def _describe_mistake(path: Path, error: Exception) -> str:
    """Return what is wrong with *path*, which is not a zip file, and how to write it."""
    advice = "Save both arrays in one file with np.savez(path, inputs=…, targets=…)"
    if isinstance(error, zipfile.BadZipFile):
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                return f"is a single array (.npy). {advice}"
    return f"is not a readable NumPy archive ({error}). {advice}"
