"""The cost of an epoch in a long run, counted in function calls because times vary on a busy machine."""

import sys
from statistics import median

from stages.loggers import FileMetricLogger
from stages.renderers import PlainRenderer
from stages.runs import HeartbeatRenderer, LogLedger, MetricEarlyStopping

NEVER = 1e9
"""An interval in seconds that excludes calls that depend on the time."""


class Calls(PlainRenderer):
    """Counts the calls that each epoch makes, of Python's functions and of C's."""

    def __init__(self):
        super().__init__(interval_seconds=NEVER)
        self.count = 0
        self.epochs = []

    def profile(self, _, event, __):
        self.count += event in ("call", "c_call")

    def epoch_end(self, progress, history):
        super().epoch_end(progress, history)
        self.epochs.append(self.count)
        self.count = 0


def test_epoch_makes_as_many_calls_in_a_long_run(train, tmp_path):
    calls = Calls()
    ledger = HeartbeatRenderer(tmp_path, NEVER, epoch_ended=LogLedger(tmp_path).add)
    loggers = [FileMetricLogger(tmp_path / split, flush_seconds=NEVER) for split in ("train", "valid")]

    def change(builder):
        builder.renderer(calls).with_progress_logger(ledger).metric_loggers(*loggers)
        return builder.early_stopping(MetricEarlyStopping(n_epochs=40))

    sys.setprofile(calls.profile)
    try:
        train(tmp_path, epochs=40, lr=1e-30, change=change)
    finally:
        sys.setprofile(None)

    early, late = median(calls.epochs[13:20]), median(calls.epochs[-7:])
    assert late - early < 20
