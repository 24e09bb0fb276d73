"""Log files read back, in every form that Burn has written them in.

A line is ``value`` (Burn up to 0.12, and metrics of the machine), ``value,count`` (0.13 to 0.21), or
``value,final`` (0.22: what the epoch came to). The epoch's value is that of the final line, else the mean
of the batches, weighed by their counts. ``N/A`` is no value; a file with no values is as none.

A file's name says ``_`` for a space, so a metric with a real ``_`` in its name comes back with a space.
A metric that is text has no epoch value: its file is passed over. Burn up to 0.12 put the valid logs of
epoch 2 and later one folder too far; they are read as they lie.
"""

import re
from pathlib import Path

from stages.contracts.errors import DataError
from stages.contracts.history import History, Split, Value
from stages.loggers.names import metric_name


def read_history(directory: Path | str) -> History:
    """What the logs under ``<directory>/train`` and ``<directory>/valid`` come to, epoch by epoch.

    Empty where there are none. ``<directory>/telemetry`` is such a directory too. Raises `DataError` for
    a line in none of the forms.
    """
    history = History()
    for split in Split:
        for epoch, folder in sorted(epoch_folders(Path(directory) / split).items()):
            for metric, value in _values(folder).items():
                history.add(Value(epoch, split, metric, value))
    return history


def read_tests(directory: Path | str) -> dict[str, dict[str, float]]:
    """Tag to metric to value, of the evaluations under ``<directory>/test/<tag>``, in alphabetical order.

    An evaluation without a tag has the empty one. Raises `DataError` as `read_history` does.
    """
    root = Path(directory) / "test"
    if not root.is_dir():
        return {}
    tags = [
        path.name for path in root.iterdir() if path.is_dir() and path not in epoch_folders(root).values()
    ]
    found = {tag: _values(_last_epoch(root / tag)) for tag in sorted(["", *tags])}
    return {tag: values for tag, values in found.items() if values}


def count_epochs(directory: Path | str) -> int:
    """The highest ``epoch-<n>`` folder of either split, whatever is in it; 0 where there is none."""
    return max((epoch for split in Split for epoch in epoch_folders(Path(directory) / split)), default=0)


def epoch_folders(directory: Path) -> dict[int, Path]:
    """What is called ``epoch-<n>`` in *directory*, by n; nothing where there is no such directory."""
    if not directory.is_dir():
        return {}
    found = ((re.fullmatch(r"epoch-(\d+)", path.name), path) for path in directory.iterdir())
    return {int(match[1]): path for match, path in found if match}


def _last_epoch(folder: Path) -> Path:
    """Where an evaluation's files are: in *folder*, or, from one pre-release of Burn, an epoch in it."""
    epochs = epoch_folders(folder)
    return epochs[max(epochs)] if epochs else folder


def _values(folder: Path) -> dict[str, float]:
    values = {metric_name(path.name): _epoch_value(path) for path in sorted(folder.glob("*.log"))}
    return {metric: value for metric, value in values.items() if value is not None}


def _epoch_value(path: Path) -> float | None:
    total, weight, final, numeric = 0.0, 0, None, False
    stray: tuple[int, str] | None = None
    for place, line in enumerate(_lines(path), start=1):
        value, comma, count = line.partition(",")
        if not line or value == "N/A":
            continue
        try:
            measured, samples = float(value), 1 if not comma else 0 if count == "final" else _natural(count)
        except ValueError:
            stray = stray or (place, line)
            continue
        numeric = True
        if samples:
            total += measured * samples
            weight += samples
        elif count == "final":
            final = measured
    if stray and numeric:
        raise DataError(
            f"{path}, line {stray[0]}: {stray[1]!r} is not 'value', 'value,count' or 'value,final'; "
            "remove the line, or the file"
        )
    return final if final is not None or not weight else total / weight


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
