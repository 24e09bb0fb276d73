"""All batches as JSON, an object a line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.contracts.text import json_number
from stages.loggers.cutting import part_of
from stages.loggers.rows import Iterations, RowFile


class JsonLinesMetricLogger:
    """Logs one split to *path*; a line is an object of epoch, iteration, name, value and count.

    The value of a whole epoch has ``null`` for iteration and count; NaN and infinity are texts. A resumed
    run goes on with the file of the one before.
    """

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        self._rows = RowFile(Path(path), _epoch, flush_seconds=flush_seconds)
        self._iterations = Iterations()
        self._names: dict[str, str] = {}

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a line for one batch of *count* samples."""
        self._write(epoch, str(self._iterations.next(epoch, name)), name, value, str(count))

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a line for a whole epoch."""
        self._write(epoch, "null", name, value, "null")

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._rows.flush()

    def close(self) -> None:
        """Flush and close."""
        self._rows.close()
        self._iterations = Iterations()

    def position(self) -> dict[str, Any]:
        """The file's size and the number of each metric's batch; everything so far is on disk."""
        return {"files": self._rows.position(), "iterations": self._iterations.position()}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Go on in the middle of *epoch*, where everything was as *position* says; all later rows go.

        Raises `CheckpointError` where the file is missing or shorter than it was.
        """
        iterations = part_of(position, "iterations", dict)
        self._rows.resume(epoch, position)
        self._iterations.resume(iterations)

    def cut(self, epoch: int) -> None:
        """The rows after *epoch* go, whatever an earlier run left there."""
        self._rows.cut(epoch)
        self._iterations = Iterations()

    def _write(self, epoch: int, iteration: str, name: str, value: float, count: str) -> None:
        quoted = self._names.get(name)
        if quoted is None:
            quoted = self._names[name] = json.dumps(name, ensure_ascii=False)
        self._rows.write(
            epoch,
            f'{{"epoch": {epoch}, "iteration": {iteration}, "name": {quoted}, '
            f'"value": {json_number(value)}, "count": {count}}}\n',
        )


def _epoch(row: str) -> int:
    return int(json.loads(row)["epoch"])
