"""The files that the user's code reads while a stage runs, in this process and in others that it starts.

An audit hook receives each file that Python opens, and the stack has the module that opens it. What a module
loads when it is imported belongs to every later stage of this process that uses the module; what a function
reads belongs to the stage that calls it. The kernel reports the other files: those that native code opens, as
safetensors, Arrow, tokenizers and programs do, and those of a spawned process. It does not report who opens
them, so only files count that the code names.

Only the user's code counts, and that is the code which is a dependency by content: the modules of the
project, and the shipped sources and models. The other parts of this package have a VERSION.

The content of each module of the current folder is recorded when it is loaded, so that a stage is refused if
its code was edited since. Contents are compared, and not times: a file may have a time in the future, and a
clock may be set.
"""

import ctypes
import functools
import inspect
import os
import struct
import sys
import sysconfig
import tempfile
import termios
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from types import FrameType
from typing import Any

import stages
from pipeline.project.imports import INSTALLED, METADATA, is_of_project
from stages.system.files import sha256

WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
"""Flags of a file that is opened to be written."""
SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/",
    "/etc/",
    "/usr/",
    "/lib/",
    "/lib64/",
    "/run/",
    *sysconfig.get_paths().values(),
)
"""Beginnings of the paths that belong to the machine or to the installation, and not to a run."""
INSTALLED_MARKS = (*(f"/{name}/" for name in INSTALLED), *(f"{ending}/" for ending in METADATA), "/.")
"""Parts of the paths of installed and of hidden files."""
MEMORY = "/dev/shm/"  # noqa: S108  a user may keep data there
SHIPPED_CODE = tuple(str(Path(stages.__path__[0], name)) for name in ("models", "data/sources"))
"""Our code that is a dependency by content; the rest has a VERSION."""
MODULE = "<module>"
"""The name of the code that runs when a module is imported."""
LISTING = ("os.listdir", "os.scandir")
"""Events of Python for a folder that is listed."""
IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
"""The name of the file of the code that opens modules."""
MODULE_SUFFIXES = (".py", ".pyc")
"""Suffixes of the source and of the compiled code of a module."""
MAX_FILES = 10_000
"""Most files that are noted in a stage; a folder of more is reported by those."""
IN_OPEN, IN_ISDIR = 0x20, 0x40000000
"""Kinds of events of the kernel: a file was opened, and it was a folder."""
EVENT = struct.Struct("iIII")
"""The watch, the kind, a cookie, and the size of the name that follows."""
MAX_EVENT_BYTES = 1 << 16
"""Most bytes of events that are read at a time."""
MAX_FOLDERS = 1_000
"""Most folders below a named one that are watched."""


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


class ReadRecorder:
    """The reads of the user's code in this process, which `record_reads` installs."""

    _watch: OpenWatch

    def __init__(self) -> None:
        self.by_import: defaultdict[str, set[str]] = defaultdict(set)
        """By the path of a module: the modules and files that it has loaded, since the process started."""
        self.sources: dict[str, str] = {}
        """By the path of a module of the current folder: the digest of its content when it was loaded."""
        self.by_stage: dict[str, str] = {}
        """By the path of a file: the module that has read it in the current stage."""
        self._folder = ""
        self._is_covered: Callable[[str], bool] = bool
        self._is_user_code: dict[str, bool] = {}
        self._body: Any = None
        self._written: set[str] = set()
        self._process, self._drained = 0, 0
        self._from_workers: Any = None
        self._started_ns = 0
        self.checked = 0
        """The value of `count` at the last check."""

    def record_loaded(self) -> None:
        """Record the content of the modules of the current folder that are loaded; later ones follow.

        Call this as early as possible: of these modules, the present content is recorded.
        """
        self.sources.clear()
        for module in list(sys.modules.values()):
            self._record_source(getattr(module, "__file__", None) or "")

    def is_stale(self, path: Path, digest: str | None) -> bool:
        """Return whether this process has loaded *path* with other content; *digest* is the current one."""
        loaded = self.sources.get(str(path.absolute()))
        return loaded is not None and loaded != (digest or sha256(path))

    @contextmanager
    def recording(
        self, body: Callable[..., Any], is_covered: Callable[[str], bool], named: Mapping[str, str]
    ) -> Iterator[None]:
        """Record the reads below the function *body* of a stage in the current folder, in the block.

        Deps and outputs of the stage, which *is_covered* accepts, are left out. *named* are files and folders
        that may be read without Python, with the module that names each.
        """
        self._is_covered = is_covered
        self._folder, self._body = f"{Path.cwd()}{os.sep}", inspect.unwrap(body).__code__
        self._is_user_code, self.by_stage, self._written, self._drained = {}, {}, set(), 0
        readers = {path: reader for path, reader in named.items() if self._is_uncovered(path)}
        with (
            closing(OpenWatch(readers)) as self._watch,
            tempfile.TemporaryFile(buffering=0) as self._from_workers,  # forks inherit it
        ):
            self._started_ns = os.fstat(self._from_workers.fileno()).st_ctime_ns
            self._process, self.checked = os.getpid(), self.count()
            try:
                yield
            finally:
                self._process = 0

    def count(self) -> int:
        """Return a number that grows with each file that the stage has read."""
        noted = len(self.by_stage) + sum(map(len, self.by_import.values()))
        return noted + self._size_of_reports() + self._watch.count()

    def drain(self) -> None:
        """Add what the workers and the kernel have reported."""
        end = self._size_of_reports()
        text = os.pread(self._from_workers.fileno(), end - self._drained, self._drained)
        self._drained = end
        for line in text.decode(errors="surrogateescape").splitlines():
            importer, reader, path = line.split("\t")
            self._add(importer, reader, path)
        for path, reader in self._watch.read():
            if self._is_uncovered(path):
                self.by_stage.setdefault(path, reader)

    def is_stable(self, path: str) -> bool:
        """Return whether the file or folder *path* exists, and was not written since the stage began."""
        exists = os.path.isdir if path.endswith(os.sep) else os.path.isfile
        with suppress(OSError):
            return (
                path not in self._written and exists(path) and os.stat(path).st_ctime_ns <= self._started_ns  # noqa: PTH116
            )
        return False

    def note(self, name: Any, flags: int) -> None:
        """Record that this process opens the file *name*, if the user's code does."""
        if isinstance(name, int):
            return
        is_import = (
            os.fsdecode(name).endswith(MODULE_SUFFIXES)  # and is not a program that shows source lines
            and sys._getframe(2).f_code.co_filename == IMPORT_SYSTEM  # noqa: SLF001  the fast way to the stack
        )
        if not (self._process or is_import):
            return
        path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100  no link followed
        if flags & WRITING:
            self._written.add(path)
            return
        path = _source_of(path)
        if is_import:
            self._record_source(path)
        if not self._process or not self._is_relevant(path):
            return
        importer, reader = self._find_reader(sys._getframe(2))  # noqa: SLF001  as above
        if path.endswith(".py"):
            if is_import:
                self._report(reader, reader, path)
        elif importer or (reader and not self._is_covered(path)):
            self._report(importer, reader, path)

    def _record_source(self, name: str) -> None:
        if name.startswith(f"{os.getcwd()}{os.sep}") and INSTALLED[0] not in name:  # noqa: PTH109  fast
            with suppress(OSError):
                self.sources[name] = sha256(Path(name))

    def note_listing(self, name: Any) -> None:
        """Record that this process lists the folder *name*, if the user's code does, with a final slash."""
        if not self._process or isinstance(name, int):
            return
        path = f"{os.path.abspath(os.fsdecode(name or '.'))}{os.sep}"  # noqa: PTH100  no link followed
        opener = sys._getframe(2)  # noqa: SLF001  as in `note`
        if path == self._folder or not self._is_uncovered(path) or opener.f_code.co_filename == IMPORT_SYSTEM:
            return
        importer, reader = self._find_reader(opener)
        if reader:
            self._report(importer, reader, path)

    def _is_uncovered(self, path: str) -> bool:
        return self._is_relevant(path) and not self._is_covered(path)

    def _is_relevant(self, path: str) -> bool:
        if path in self.by_stage:
            return False
        if path.startswith(self._folder):
            return is_of_project(Path(path[len(self._folder) :]))
        is_of_machine = path.startswith(SYSTEM) and not path.startswith(MEMORY)
        is_installed = any(mark in path for mark in INSTALLED_MARKS)
        return not (is_of_machine or is_installed or path.endswith(".py"))

    def _find_reader(self, frame: FrameType | None) -> tuple[str, str]:
        """Return the innermost module of the user that is being imported, and the one whose code runs."""
        reader = ""
        while frame is not None and frame.f_code is not self._body:
            path = frame.f_code.co_filename
            if self._is_of_user(path):
                reader = reader or path
                if frame.f_code.co_name == MODULE:
                    return path, reader
            frame = frame.f_back
        return "", reader

    def _is_of_user(self, path: str) -> bool:
        if path not in self._is_user_code:
            is_below = path.startswith(self._folder) and is_of_project(Path(path[len(self._folder) :]))
            self._is_user_code[path] = is_below or path.startswith(SHIPPED_CODE)
        return self._is_user_code[path]

    def _report(self, importer: str, reader: str, path: str) -> None:
        """Record a read; a worker also reports it to the process of the stage, once."""
        if len(self.by_stage) < MAX_FILES:
            self._add(importer, reader, path)
            if os.getpid() != self._process and "\n" not in path:
                line = f"{importer}\t{reader}\t{path}\n".encode(errors="surrogateescape")
                os.write(self._from_workers.fileno(), line)

    def _add(self, importer: str, reader: str, path: str) -> None:
        if importer:
            self.by_import[importer].add(path)
        if not importer or path.endswith(".py"):
            self.by_stage[path] = reader

    def _size_of_reports(self) -> int:
        return os.fstat(self._from_workers.fileno()).st_size


@functools.cache
def record_reads() -> ReadRecorder:
    """Return the recorder of this process, which the first call installs. An audit hook cannot be removed."""
    recorder = ReadRecorder()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        with suppress(Exception):  # it would be raised in the code that opens the file
            if event == "open":
                recorder.note(arguments[0], arguments[2] or 0)
            elif event == "import" and arguments[1]:  # the file of a compiled module
                recorder.note(arguments[1], 0)
            elif event in LISTING:
                recorder.note_listing(arguments[0])

    sys.addaudithook(hook)
    return recorder


def _list_folders(path: str) -> Iterator[str]:
    """Yield *path*, and the folders below it."""
    yield path
    for folder, names, _ in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118


def _source_of(path: str) -> str:
    """Return the source of *path* if that is the compiled code of a module, and *path* otherwise."""
    folder, separator, name = path.rpartition(f"{os.sep}__pycache__{os.sep}")
    return f"{folder}{os.sep}{name.partition('.')[0]}.py" if separator else path
