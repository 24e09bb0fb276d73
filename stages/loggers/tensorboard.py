"""Batches and epochs as curves in TensorBoard. Needs the extra ``tensorboard``."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.contracts.extras import load_extra
from stages.contracts.files import write_text
from stages.loggers.cutting import part_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


ENDS_FILE = "epochs.json"
"""The name of the file with the number of batches until the end of each epoch."""


class TensorBoardMetricLogger:
    """Logs one split to *directory*; TensorBoard shows each split's folder as a run of its own.

    A metric has two curves: *name* by batch, counted through all epochs, and *name* ``(epoch)`` by epoch,
    a mean weighed by the batches' samples. A resumed run names the batches done before it in *first_step*,
    so that its curve goes on where the other ended.

    The files hold the time of day, so they are for people and no output that DVC could compare. A thread
    of TensorBoard's own writes them: a call costs some ten times what a log file's does.

    Such files cannot be cut. A run that goes on begins another, which says from which batch on TensorBoard
    is to forget what the others hold: the curves by batch are then those of an unbroken run. In a curve by
    epoch a point may stand twice, where the run before had come further than the epoch it goes on with.
    """

    def __init__(self, directory: Path | str, *, first_step: int = 0) -> None:
        tensorboard = load_extra("torch.utils.tensorboard", "tensorboard", type(self).__name__)
        self._writer_type: type[SummaryWriter] = tensorboard.SummaryWriter
        self.directory = Path(directory)
        self._steps: dict[str, int] = {}
        self._first_step = first_step
        self._ends = {0: first_step} | _read_ends(self.directory)
        """Epoch to the number of batches until its end; stored in a file for a resumed run."""
        self._purge_step: int | None = None
        self._stopped = False
        self._epoch = 0
        self._sums: dict[str, tuple[float, int]] = {}
        self._writer: SummaryWriter | None = None

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a point to the curve by batch."""
        writer = self._begun(epoch)
        step = self._steps[name] = self._steps.get(name, self._first_step) + 1
        writer.add_scalar(name, value, step)
        total, weight = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + value * count, weight + count

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a point to the curve by epoch, for a metric that is no mean of its batches."""
        self._begun(epoch)
        self._sums[name] = value, 1

    def flush(self) -> None:
        """Everything so far is on its way to disk when this returns."""
        self._stopped = False
        if self._writer:
            self._writer.flush()

    def close(self) -> None:
        """Write the points of the epoch that was logged last, unless it goes on elsewhere, and close."""
        if self._writer:
            if not self._stopped:
                self._end_epoch(self._writer)
            self._writer.close()
            self._writer = None

    def position(self) -> dict[str, Any]:
        """What the next points are counted and weighed from; everything so far is on its way to disk.

        Where nothing follows but `close`, the epoch is taken to go on in another process: it gets no point.
        """
        self.flush()
        self._stopped = True
        sums = {name: list(each) for name, each in self._sums.items()}
        return {"epoch": self._epoch, "steps": dict(self._steps), "sums": sums}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:  # noqa: ARG002 - the position has its own
        """Go on where everything was as *position* says; later batches are forgotten by TensorBoard."""
        before = part_of(position, "epoch", int)
        steps = dict(part_of(position, "steps", dict))
        sums = part_of(position, "sums", dict)
        self._go_on(steps, max(steps.values(), default=self._first_step))
        self._epoch = before
        self._sums = {name: (total, weight) for name, (total, weight) in sums.items()}

    def cut(self, epoch: int) -> None:
        """The batches after *epoch* are forgotten by TensorBoard.

        How many batches there are before is what this logger saw, or was told as its *first_step*.
        """
        if self._writer:
            self._end_epoch(self._writer)
        done = self._ends.get(epoch, self._first_step)
        self._ends = {each: end for each, end in self._ends.items() if each <= epoch}
        self._first_step = done
        self._go_on({}, done)

    def _go_on(self, steps: dict[str, int], done: int) -> None:
        self._stopped = True
        self.close()
        self._steps, self._sums, self._epoch, self._stopped = steps, {}, 0, False
        self._purge_step = done + 1

    def _begun(self, epoch: int) -> "SummaryWriter":
        self._stopped = False
        if self._writer is None:
            if self._purge_step is not None:
                _wait_for_a_later_name(self.directory)
            self._writer = self._writer_type(str(self.directory), purge_step=self._purge_step)
            self._purge_step = None
        if epoch != self._epoch:
            self._end_epoch(self._writer)
            self._epoch = epoch
        return self._writer

    def _end_epoch(self, writer: "SummaryWriter") -> None:
        for name, (total, weight) in self._sums.items():
            if weight:
                writer.add_scalar(f"{name} (epoch)", total / weight, self._epoch)
        self._ends[self._epoch] = max(self._steps.values(), default=0)
        write_text(self.directory / ENDS_FILE, json.dumps(self._ends))
        self._sums.clear()


def _read_ends(directory: Path) -> dict[int, int]:
    try:
        return {int(epoch): steps for epoch, steps in json.loads((directory / ENDS_FILE).read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _wait_for_a_later_name(directory: Path) -> None:
    """TensorBoard reads files in the order of their names, which begin with the second. Waits one at most."""
    seconds = [path.name.split(".")[3] for path in directory.glob("events.out.tfevents.*")]
    now = time.time()
    if str(int(now)) in seconds:
        time.sleep(1 - now % 1)
