"""The log of a run for people: every record of `logging` from INFO on, in the form Burn's has."""

import logging
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from stages.contracts.errors import KilledError, StageError
from stages.loggers.lines import LineFile


class ExperimentLog:
    """Within its block all records of this process go to *path* too, after what is there::

        2024-04-05T01:54:38.471521Z  INFO stages::learner::loop: Executing training step for epoch 1

    A line is on its way to disk at once, but for one that repeats the message before it with other values
    (``Iteration %d``): that one waits up to *flush_seconds* for the next. An exception that leaves the
    block is noted as Burn notes a panic. What is shown elsewhere stays as it was. Within the block of
    another log of the same file this one does nothing.
    """

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        self.path = Path(path)
        self._flush_seconds = flush_seconds
        self._entered: list[_LineHandler | None] = []

    def __enter__(self) -> Self:
        path = self.path.absolute()
        known = any(isinstance(each, _LineHandler) and each.path == path for each in logging.root.handlers)
        handler = None if known else _LineHandler(path, self._flush_seconds)
        if handler:
            handler.install()
        self._entered.append(handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handler = self._entered.pop()
        if handler:
            if isinstance(error, Exception | KeyboardInterrupt | KilledError):
                handler.panic(error)
            handler.remove()


class _LineHandler(logging.Handler):
    """Writes records as lines; the root logger's other handlers write no more and no less for it."""

    def __init__(self, path: Path, flush_seconds: float) -> None:
        super().__init__(logging.INFO)
        self.path = path
        self._file = LineFile(path, "a", flush_seconds)
        self._process = os.getpid()
        self._template: object = None
        self._second = (0, "")
        self._level_before = logging.root.level
        self._quieted: list[logging.Handler] = []

    def install(self) -> None:
        """Hear every record from INFO on; the handlers there are go on as if nothing had changed."""
        if logging.root.level > logging.INFO:
            self._quieted = list(logging.root.handlers)
            for handler in self._quieted:
                handler.addFilter(self._was_let_through)
            logging.root.setLevel(logging.INFO)
        logging.root.addHandler(self)

    def remove(self) -> None:
        """Leave everything as it was before `install`."""
        logging.root.removeHandler(self)
        if logging.root.level == logging.INFO:
            logging.root.setLevel(self._level_before)
        for handler in self._quieted:
            handler.removeFilter(self._was_let_through)
        with suppress(OSError):
            self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*; one that cannot be written is reported as `logging` does, and raises nothing."""
        try:
            self._write(record)
        except Exception:  # noqa: BLE001 - a record that cannot be written must not end a training
            self.handleError(record)
        if (
            record.levelno >= logging.WARNING
            and logging.lastResort
            and not self._heard_elsewhere(record.name)
        ):
            logging.lastResort.handle(record)  # as without this handler: it would have been the last resort

    def panic(self, error: BaseException) -> None:
        """Note what ended the run; with a traceback where it was no mistake of the user's."""
        text = f"PANIC => {type(error).__name__}: {error}"
        if not isinstance(error, StageError | KilledError):
            text += "\n" + "".join(traceback.format_exception(error)).rstrip()
        with suppress(OSError):  # which would hide the error that ended the run
            self._write(logging.makeLogRecord({"name": __name__, "levelno": logging.ERROR, "msg": text}))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        super().close()

    def _write(self, record: logging.LogRecord) -> None:
        if (
            os.getpid() != self._process
        ):  # a forked worker of a loader: what was kept is its parent's to write
            self._process = os.getpid()
            self._file.forget()
        self._file.write(self._line(record))
        if record.msg is not self._template or record.levelno >= logging.WARNING:
            self._file.flush()
            self._template = record.msg

    def _line(self, record: logging.LogRecord) -> str:
        second, microsecond = divmod(int(record.created * 1_000_000), 1_000_000)
        if second != self._second[0]:
            self._second = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        message = record.getMessage()
        if record.exc_info and record.exc_info[0]:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        target = record.name.replace(".", "::")
        return f"{self._second[1]}.{microsecond:06}Z {_level(record.levelno)} {target}: {message}\n"

    def _was_let_through(self, record: logging.LogRecord) -> bool:
        """Whether *record* came to the handlers before this one lowered the root logger's level."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger and logger is not logging.root:
            if logger.level:
                return True
            logger = logger.parent
        return record.levelno >= self._level_before

    def _heard_elsewhere(self, name: str) -> bool:
        """Whether some other handler hears what logger *name* says."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger:
            if any(not isinstance(handler, _LineHandler) for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def _level(number: int) -> str:
    """As Burn writes it, right-aligned to five."""
    if number >= logging.ERROR:
        return "ERROR"
    return " WARN" if number >= logging.WARNING else " INFO"
