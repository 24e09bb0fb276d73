"""The log of a run for people: all records of `logging` from level INFO on, in the format of Burn's log."""

import logging
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from stages.contracts.errors import KilledError, StageError
from stages.contracts.printing import print_error
from stages.loggers.line_file import LineFile


class ExperimentLog:
    """A context manager that appends all log records of this process to *path*:

        2024-04-05T01:54:38.471521Z  INFO stages::learner::loop: Executing training step for epoch 1

    A line is passed to the operating system immediately, unless it repeats the previous message with other
    values (``Iteration %d``): such a line is buffered for up to *flush_seconds*. An exception that leaves the
    block is logged as Burn logs a panic. The output of other handlers does not change. A block inside the
    block of another log of the same file has no effect.
    """

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        self.path = Path(path)
        self._flush_seconds = flush_seconds
        self._entered: list[_LineHandler | None] = []

    def __enter__(self) -> Self:
        path = self.path.absolute()
        is_open = any(
            isinstance(handler, _LineHandler) and handler.path == path for handler in logging.root.handlers
        )
        handler = None if is_open else _LineHandler(path, self._flush_seconds)
        if handler:
            handler.install()
        self._entered.append(handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handler = self._entered.pop()
        if handler:
            try:
                if isinstance(error, Exception | KeyboardInterrupt | KilledError):
                    handler.write_panic(error)
            finally:
                handler.remove()


class _LineHandler(logging.Handler):
    """A handler that writes records as lines and does not change the output of the root logger's others."""

    def __init__(self, path: Path, flush_seconds: float) -> None:
        super().__init__(logging.INFO)
        self.path = path
        self._file = LineFile(path, "a", flush_seconds)
        self._process = os.getpid()
        self._has_failed = False
        self._template: object = None
        self._second = (0, "")
        self._original_level = logging.root.level
        self._filtered: list[logging.Handler] = []

    def install(self) -> None:
        """Receive all records from INFO on; the other handlers receive the same records as before."""
        if logging.root.level > logging.INFO:
            self._filtered = list(logging.root.handlers)
            for handler in self._filtered:
                handler.addFilter(self._passes_original_level)
            logging.root.setLevel(logging.INFO)
        logging.root.addHandler(self)

    def remove(self) -> None:
        """Restore the level and the handlers to their state before `install`."""
        logging.root.removeHandler(self)
        if logging.root.level == logging.INFO:
            logging.root.setLevel(self._original_level)
        for handler in self._filtered:
            handler.removeFilter(self._passes_original_level)
        with suppress(OSError):
            self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*; report an error of the system once, and another one as `logging` does."""
        try:
            self._write(record)
        except OSError as error:
            if not self._has_failed:
                print_error(f"warning: {self.path}: {error.strerror}. Lines of this log may be missing")
            self._has_failed = True
        except Exception:  # noqa: BLE001 - a failed write must not end a training
            self.handleError(record)
        if (
            record.levelno >= logging.WARNING
            and logging.lastResort
            and not self._has_other_handler(record.name)
        ):
            logging.lastResort.handle(record)  # as `logging` does if this handler is not installed

    def write_panic(self, error: BaseException) -> None:
        """Write the exception that ended the run, with its traceback unless it is a user's mistake."""
        described = traceback.TracebackException.from_exception(error)  # a user's own __str__ may fail
        text = f"PANIC => {type(error).__name__}: {described}"
        if not isinstance(error, StageError | KilledError):
            text += "\n" + "".join(described.format()).rstrip()
        with suppress(OSError):  # a full disk must not hide the error that ended the run
            self._write(logging.makeLogRecord({"name": __name__, "levelno": logging.ERROR, "msg": text}))

    def flush(self) -> None:
        """Pass all lines to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        super().close()

    def _write(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._process:  # a forked worker of a loader: the parent process writes its lines
            self._process = os.getpid()
            self._file.discard_buffer()
        self._file.write(self._format_line(record))
        if record.msg is not self._template or record.levelno >= logging.WARNING:
            self._file.flush()
            self._template = record.msg

    def _format_line(self, record: logging.LogRecord) -> str:
        second, microsecond = divmod(int(record.created * 1_000_000), 1_000_000)
        if second != self._second[0]:
            self._second = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        message = record.getMessage()
        if record.exc_info and record.exc_info[0]:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        target = record.name.replace(".", "::")
        return f"{self._second[1]}.{microsecond:06}Z {_format_level(record.levelno)} {target}: {message}\n"

    def _passes_original_level(self, record: logging.LogRecord) -> bool:
        """Return whether *record* passes with the level of the root logger before `install` lowered it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger and logger is not logging.root:
            if logger.level:
                return True
            logger = logger.parent
        return record.levelno >= self._original_level

    def _has_other_handler(self, name: str) -> bool:
        """Return whether another handler receives the records of the logger *name*."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger:
            if any(not isinstance(handler, _LineHandler) for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def _format_level(number: int) -> str:
    """Return the level as in Burn's log, right-aligned to five characters."""
    if number >= logging.ERROR:
        return "ERROR"
    return " WARN" if number >= logging.WARNING else " INFO"
