"""TensorBoard's event files: curves by batch and by epoch. Needs the extra ``tensorboard``."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.contracts.plugins import load_extra
from stages.contracts.step_log import LoggedSample
from stages.loggers.line_file import read_entry
from stages.system.files import write_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EPOCH_ENDS_FILE = "epochs.json"
"""The name of the file with the number of batches until the end of each epoch."""


class TensorBoardMetricLogger:
    """A logger that writes the curves of one split to *directory*, which TensorBoard shows as one run.

    A metric has two curves: *name* by batch, counted through all epochs, and *name* ``(epoch)`` by epoch, the
    mean of the batches weighted by their samples. To continue the curves of another directory, set
    *first_step* to the number of its batches.

    Event files contain the time of day and thus differ between equal runs, so DVC must not track them. A
    thread of TensorBoard writes them. A call takes about ten times as long as one of `FileMetricLogger`.

    An event file cannot be truncated. A resumed run starts a new one, which makes TensorBoard ignore the
    later batches of the other files: the curves by batch are then those of an uninterrupted run. A curve by
    epoch can have two points for one epoch if the previous process finished an epoch that runs again.
    """

    def __init__(self, directory: Path | str, *, first_step: int = 0) -> None:
        tensorboard = load_extra("torch.utils.tensorboard", "tensorboard", type(self).__name__)
        self._writer_type: type[SummaryWriter] = tensorboard.SummaryWriter
        self.directory = Path(directory)
        self._step = first_step
        """The number of the batch whose values are logged, through all epochs."""
        self._start = 0
        """The number of batches before the current epoch."""
        self._ends = {0: first_step} | _read_ends(self.directory)
        """Epoch to the number of batches until its end; stored in a file for a resumed run."""
        self._purge_step: int | None = None
        self._epoch_continues = False
        """True if another process may continue the epoch, so that `close` must not write its points."""
        self._epoch = 0
        self._sums: dict[str, tuple[float, float]] = {}
        self._writer: SummaryWriter | None = None

    def begin_batch(self, epoch: int, iteration: int) -> None:
        """Add the next points as those of the batch *iteration* of *epoch*, from 1."""
        self._open(epoch)
        self._step = self._start + iteration

    def log(self, epoch: int, name: str, value: float, count: float) -> None:
        """Add a point to the curve by batch."""
        self._open(epoch).add_scalar(name, value, self._step)
        total, weight = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + value * count, weight + count

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a point to the curve by epoch, for a metric that is not the mean of its batches."""
        self._open(epoch)
        self._sums[name] = value, 1

    def log_sample(self, epoch: int, sample: LoggedSample) -> None:
        """Add an image or a text at the step *epoch*."""
        writer, name = self._open(epoch), f"{sample.name}/{sample.number}"
        if isinstance(sample.content, str):
            writer.add_text(name, sample.content, epoch)
        else:
            writer.add_image(name, sample.content, epoch, dataformats="HWC"[: sample.content.ndim])

    def flush(self) -> None:
        """Write the points of the epoch, which has ended, and pass all to the operating system."""
        self._epoch_continues = False
        if self._writer:
            self._end_epoch(self._writer)
            self._writer.flush()

    def close(self) -> None:
        """Write the points of the current epoch, unless `position` was the last call, and close."""
        if self._writer:
            if not self._epoch_continues:
                self._end_epoch(self._writer)
            self._writer.close()
            self._writer = None

    def position(self) -> dict[str, Any]:
        """Flush, and return the numbers of batches and the sums of the current epoch.

        If the next call is `close`, another process is assumed to continue the epoch, which gets no points.
        """
        if self._writer:
            self._writer.flush()
        self._epoch_continues = True
        sums = {name: list(pair) for name, pair in self._sums.items()}
        return {"epoch": self._epoch, "start": self._start, "step": self._step, "sums": sums}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:  # noqa: ARG002 - the position has one
        """Resume at *position*, and make TensorBoard ignore later batches."""
        resumed_epoch, start, step = (read_entry(position, key, int) for key in ("epoch", "start", "step"))
        sums = read_entry(position, "sums", dict)
        self._restart(step)
        self._epoch, self._start = resumed_epoch, start
        self._sums = {name: (total, weight) for name, (total, weight) in sums.items()}

    def cut(self, epoch: int) -> None:
        """Make TensorBoard ignore the batches after *epoch*.

        The number of batches until then is that of an earlier process or of this one, or else *first_step*.
        """
        if self._writer:
            self._end_epoch(self._writer)
        self._ends = {number: end for number, end in self._ends.items() if number <= epoch}
        self._restart(self._ends[max(self._ends)])

    def _restart(self, finished: int) -> None:
        """Close the event file; the next one makes TensorBoard ignore the batches after *finished*."""
        self._epoch_continues = True
        self.close()
        self._step, self._sums, self._epoch, self._epoch_continues = finished, {}, 0, False
        self._purge_step = finished + 1

    def _open(self, epoch: int) -> "SummaryWriter":
        """Return the writer, after writing the points of the previous epoch if *epoch* is a new one."""
        self._epoch_continues = False
        if self._writer is None:
            if self._purge_step is not None:
                _wait_for_later_name(self.directory)
            self._writer = self._writer_type(str(self.directory), purge_step=self._purge_step)
            self._purge_step = None
        if epoch != self._epoch:
            if self._epoch:
                self._end_epoch(self._writer)
            self._epoch, self._start = epoch, self._step
        return self._writer

    def _end_epoch(self, writer: "SummaryWriter") -> None:
        for name, (total, weight) in self._sums.items():
            if weight:
                writer.add_scalar(f"{name} (epoch)", total / weight, self._epoch)
        self._ends[self._epoch] = self._step
        write_text(self.directory / EPOCH_ENDS_FILE, json.dumps(self._ends))
        self._sums.clear()


def _read_ends(directory: Path) -> dict[int, int]:
    try:
        return {
            int(epoch): steps
            for epoch, steps in json.loads((directory / EPOCH_ENDS_FILE).read_text()).items()
        }
    except (OSError, ValueError, AttributeError):
        return {}


def _wait_for_later_name(directory: Path) -> None:
    """Wait until a new file has a later name than those in *directory*: at most one second.

    TensorBoard reads files in the order of their names, which begin with the second of their creation.
    """
    seconds = [path.name.split(".")[3] for path in directory.glob("events.out.tfevents.*")]
    now = time.time()
    if str(int(now)) in seconds:
        time.sleep(1 - now % 1)
