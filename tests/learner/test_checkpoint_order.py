"""The checkpoints that exist at each moment of a run, and what is on disk before them."""

import re

import pytest

from stages.contracts.history import History
from stages.learner import LearnerBuilder
from stages.loggers import InMemoryMetricLogger
from stages.metrics import LossMetric
from stages.optim import Adam
from stages.records import DefaultRecorder, NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.runs import FileCheckpointer, epochs_to_keep


class KeepNone:
    """A rule that drops every checkpoint, and records those that existed at each call."""

    def __init__(self):
        self.asked = []

    def keep(self, saved, history):
        self.asked.append(list(saved))
        return set()


class Flushed(InMemoryMetricLogger):
    """A logger that lists the epochs of the rows since the last `flush`."""

    unflushed = ()

    def log(self, epoch, *row):
        super().log(epoch, *row)
        self.unflushed = (*self.unflushed, epoch)

    def flush(self):
        self.unflushed = ()


class Noted(NamedMpkGzFileRecorder, NoRenderer):
    """Records the number of an epoch's rows that are not flushed at its end and at each write."""

    def __init__(self, loggers):
        super().__init__()
        self.loggers = loggers
        self.noted = []

    def epoch_end(self, progress, history):
        self.note(progress.epoch)

    def note(self, epoch):
        self.noted.append(sum(each.unflushed.count(epoch) for each in self.loggers))

    def record(self, item, path):
        self.note(int(re.search(r"-(\d+)", path.name)[1]))  # the next epoch may have begun
        return super().record(item, path)


def test_newest_checkpoint_is_kept_if_the_rule_drops_all(train, tmp_path):
    rule = KeepNone()

    train(tmp_path, epochs=3, change=lambda builder: builder.with_checkpointing_strategy(rule))

    assert rule.asked == [[1], [1, 2], [2, 3]]
    assert FileCheckpointer(tmp_path / "checkpoint", DefaultRecorder()).list_saved() == [3]


@pytest.mark.parametrize("last_epoch", [1, 4])
def test_finished_run_whose_rule_drops_all_keeps_the_last_epoch(last_epoch):
    assert epochs_to_keep(KeepNone(), History(), [], last_epoch) == {last_epoch}


def test_logs_are_flushed_before_the_ledger_and_the_checkpoint(tiny, tmp_path):
    net, loaders = tiny
    loggers = Flushed(), Flushed()
    noted = Noted(loggers)
    builder = LearnerBuilder(tmp_path).num_epochs(2).seed(1).devices(["cpu"]).metric_loggers(*loggers)
    builder.with_file_checkpointer(noted).renderer(NoRenderer()).with_progress_logger(noted)

    builder.metrics(LossMetric()).build(net(), Adam(), 0.05).fit(*loaders())

    assert len(loggers[0].rows) > 0
    assert noted.noted == [0] * 2 * (1 + 3)
