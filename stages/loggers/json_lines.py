"""All batches as JSON, an object a line."""

import json
from pathlib import Path

from stages.contracts.text import json_number
from stages.loggers.rows import RowFile, RowLogger


class JsonLinesMetricLogger(RowLogger):
    """Logs one split to *path*; a line is an object of epoch, iteration, name, value and count.

    The value of a whole epoch has ``null`` for iteration and count; NaN and infinity are texts. A resumed
    run goes on with the file of the one before.
    """

    suffix = ".jsonl"

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        super().__init__(RowFile(Path(path), _epoch, flush_seconds=flush_seconds))
        self._names: dict[str, str] = {}

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a line for one batch of *count* samples."""
        self._write(epoch, str(self._iterations.next(epoch, name)), name, value, str(count))

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a line for a whole epoch."""
        self._write(epoch, "null", name, value, "null")

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
