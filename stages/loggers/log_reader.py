"""Reading of log files, in every format that Burn has written.

A line is ``value`` (Burn up to 0.12, and metrics of the machine), ``value,count`` (0.13 to 0.21), or
``value,final`` (0.22: the value of the epoch). The value of an epoch is that of its final line, or else the
mean of its batches, weighted by their counts. ``N/A`` is not a value, and a file without values is ignored.

A file name has ``_`` for each space, so a ``_`` in the name of a metric is read as a space. A text metric has
no epoch value, and its file is ignored. Burn up to 0.12 wrote the valid logs of epoch 2 and later one folder
too deep; they are read from the folder that they are in.
"""

import math
from pathlib import Path

from stages.contracts.errors import DataError
from stages.contracts.history import History, Split, Value
from stages.loggers.log_files import find_epoch_folders, parse_metric_name
from stages.system.files import read_regular


def read_history(directory: Path | str) -> History:
    """Return the epoch values of the logs in ``<directory>/train`` and ``<directory>/valid``.

    The history is empty if there are no logs. ``<directory>/telemetry`` can be read in the same way. Raises
    `DataError` for a line in an unsupported format.
    """
    history = History()
    for split in Split:
        for epoch, folder in sorted(find_epoch_folders(Path(directory) / split).items()):
            for metric, value in _read_values(folder).items():
                history.add(Value(epoch, split, metric, value))
    return history


def read_epoch(directory: Path | str, split: Split, epoch: int) -> dict[str, float]:
    """Return metric to value of one *epoch* of *split*, from the logs in *directory*; empty without any.

    Raises `DataError` as `read_history` does.
    """
    return _read_values(Path(directory) / split / f"epoch-{epoch}")


def read_tests(directory: Path | str) -> dict[str, dict[str, float]]:
    """Return tag to metric to value of the evaluations in ``<directory>/test/<tag>``, sorted by tag.

    The tag of an evaluation without one is the empty string. Raises `DataError` as `read_history` does.
    """
    root = Path(directory) / "test"
    if not root.is_dir():
        return {}
    epochs = find_epoch_folders(root).values()
    tags = [path.name for path in root.iterdir() if path.is_dir() and path not in epochs]
    found = {tag: _read_values(_find_last_epoch(root / tag)) for tag in sorted(["", *tags])}
    return {tag: values for tag, values in found.items() if values}


def count_epochs(directory: Path | str) -> int:
    """Return the highest n of the folders ``epoch-<n>`` of both splits, even if empty; 0 without any."""
    return max((epoch for split in Split for epoch in find_epoch_folders(Path(directory) / split)), default=0)


def _find_last_epoch(folder: Path) -> Path:
    """Return the last epoch in *folder*, which one pre-release of Burn wrote for a test set, or *folder*."""
    epochs = find_epoch_folders(folder)
    return epochs[max(epochs)] if epochs else folder


def _read_values(folder: Path) -> dict[str, float]:
    values = {parse_metric_name(path.name): _read_epoch_value(path) for path in sorted(folder.glob("*.log"))}
    return {metric: value for metric, value in values.items() if value is not None}


def _read_epoch_value(path: Path) -> float | None:
    total, weight, final, numeric = 0.0, 0.0, None, False
    invalid: tuple[int, str] | None = None
    for line_number, line in enumerate(_read_lines(path), start=1):
        value, comma, count = line.partition(",")
        if not line or value == "N/A":
            continue
        try:
            measured, samples = (
                float(value),
                1 if not comma else 0 if count == "final" else _parse_count(count),
            )
        except ValueError:
            invalid = invalid or (line_number, line)
            continue
        numeric = True
        if samples:
            total += measured * samples
            weight += samples
        elif count == "final":
            final = measured
    if invalid and numeric:
        raise DataError(
            f"{path}, line {invalid[0]}: {invalid[1]!r} is not 'value', 'value,count' or 'value,final'; "
            "remove the line, or the file"
        )
    return final if final is not None or not weight else total / weight


def _parse_count(text: str) -> float:
    count = float(text)
    if not 0 <= count < math.inf:
        raise ValueError(text)
    return count


def _read_lines(path: Path) -> list[str]:
    try:
        return read_regular(path).decode("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Make it readable, or remove it") from error
