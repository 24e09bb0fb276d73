"""The files that the code of a stage names in its texts, and the kernel's reports of which are opened.

Python reports the files that it opens itself. It reports none that native code opens, as safetensors, Arrow,
tokenizers and programs do, and none of a spawned process. The kernel reports each, but not who opens it; so
only files count that the code names.
"""

import ast
import ctypes
import os
import struct
import termios
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fcntl import ioctl
from functools import lru_cache
from itertools import product
from pathlib import Path

from pipeline.project.imports import read_source

IN_OPEN, IN_ISDIR = 0x20, 0x40000000
EVENT = struct.Struct("iIII")
"""The watch, the kind, a cookie, and the size of the name that follows."""
MAX_EVENT_BYTES = 1 << 16
MAX_TEXT = 255
"""Characters of a text that may be the name of a file."""
MAX_FOLDERS = 1_000
"""Most folders below a named one that are watched."""


def find_named_files(modules: Iterable[Path], root: Path) -> dict[Path, Path]:
    """Return the files that *modules* of the project *root* name, and folders of it, each with its module.

    A name is a text or, for a file, a word of one with a dot or a slash. It is relative to *root*, to the
    folder of the module, or to a folder that another text names. A text without a slash names no folder, as
    in ``batch["data"]``: other programs open files below it at any time.
    """
    named: dict[Path, Path] = {}
    for module in modules:
        texts = read_source(root / module, _parse_texts)
        bases = [root, (root / module).parent]
        found = _find(bases, texts)
        folders = {path: text for path, text in found.items() if path.is_dir() and root in path.parents}
        words = [word for text in texts for word in text.split() if "." in word or os.sep in word]
        found |= _find(bases, words) | _find(folders, [*texts, *words])
        named |= {path: module for path in found if path.is_file()}
        named |= {path: module for path, text in folders.items() if os.sep in text.rstrip(os.sep)}
    return named


def _find(bases: Iterable[Path], texts: Iterable[str]) -> dict[Path, str]:
    """Return the text that names each path below one of *bases* that exists."""
    found = {}
    for base, text in product(bases, dict.fromkeys(texts)):
        path = os.path.normpath(os.path.join(base, text))  # noqa: PTH118  any text
        if os.path.exists(path):  # noqa: PTH110  ten times as fast
            found[Path(path)] = text
    return found


@lru_cache(maxsize=256)
def _parse_texts(source: bytes) -> list[str]:
    """Return the texts in *source* that may be the name of a file; those of ``f"{folder}/name"`` too.

    Docstrings, and other texts that are statements, are left out.
    """
    nodes = list(ast.walk(ast.parse(source)))
    unused = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    values = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in unused]
    texts = [value for value in values if isinstance(value, str) and 0 < len(value) <= MAX_TEXT]
    texts += [text.lstrip("/") for text in texts if text.startswith("/")]
    return [text for text in dict.fromkeys(texts) if text and "\0" not in text]


class OpenWatch:
    """The opens of some files by any process; none if the kernel permits no more watches."""

    def __init__(self, readers: Mapping[str, str]) -> None:
        """Watch the paths in *readers*; of a folder, the files at any depth."""
        self._library = ctypes.CDLL(None)
        self._handle = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, tuple[str, str]] = {}
        for path, reader in readers.items():
            for place, _ in zip(_list_folders(path), range(MAX_FOLDERS), strict=False):
                number = self._library.inotify_add_watch(self._handle, os.fsencode(place), IN_OPEN)
                if number >= 0:
                    self._watched.setdefault(number, (place, reader))

    def count(self) -> int:
        """Return the number of bytes that `read` would read."""
        size = bytearray(4)
        with suppress(OSError):
            ioctl(self._handle, termios.FIONREAD, size)
        return int.from_bytes(size, "little")

    def read(self) -> Iterator[tuple[str, str]]:
        """Yield each file that was opened since the last call, with its reader."""
        with suppress(OSError):  # no event has arrived
            while content := os.read(self._handle, MAX_EVENT_BYTES):
                yield from self._parse(content)

    def close(self) -> None:
        """End the watch."""
        with suppress(OSError):
            os.close(self._handle)

    def _parse(self, content: bytes) -> Iterator[tuple[str, str]]:
        start = 0
        while start < len(content):
            number, mask, _, size = EVENT.unpack_from(content, start)
            start += EVENT.size + size
            name = os.fsdecode(content[start - size : start].rstrip(b"\0"))
            if number in self._watched and not mask & IN_ISDIR:
                place, reader = self._watched[number]
                yield os.path.join(place, name) if name else place, reader  # noqa: PTH118


def _list_folders(path: str) -> Iterator[str]:
    """Yield *path*, and the folders below it."""
    yield path
    for folder, names, _ in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118
