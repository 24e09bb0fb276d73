"""Batches and epochs as curves in TensorBoard. Needs the extra ``tensorboard``."""

from pathlib import Path

from stages.contracts.errors import PluginError

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise PluginError(
        f"TensorBoardMetricLogger cannot be used: {error}.\n"
        "  install it: pip install 'learner-pipeline[tensorboard]'"
    ) from error


class TensorBoardMetricLogger:
    """Logs one split to *directory*; TensorBoard shows each split's folder as a run of its own.

    A metric has two curves: *name* by batch, counted through all epochs, and *name* ``(epoch)`` by epoch,
    a mean weighed by the batches' samples. A resumed run names the batches done before it in *first_step*,
    so that its curve goes on where the other ended.

    The files hold the time of day, so they are for people and no output that DVC could compare. A thread
    of TensorBoard's own writes them: a call costs some ten times what a log file's does.
    """

    def __init__(self, directory: Path | str, *, first_step: int = 0) -> None:
        self.directory = Path(directory)
        self._steps: dict[str, int] = {}
        self._first_step = first_step
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
        if self._writer:
            self._writer.flush()

    def close(self) -> None:
        """Write the points of the epoch that was logged last, and close."""
        if self._writer:
            self._end_epoch(self._writer)
            self._writer.close()
            self._writer = None

    def _begun(self, epoch: int) -> SummaryWriter:
        if self._writer is None:
            self._writer = SummaryWriter(str(self.directory))
        if epoch != self._epoch:
            self._end_epoch(self._writer)
            self._epoch = epoch
        return self._writer

    def _end_epoch(self, writer: SummaryWriter) -> None:
        for name, (total, weight) in self._sums.items():
            if weight:
                writer.add_scalar(f"{name} (epoch)", total / weight, self._epoch)
        self._sums.clear()
