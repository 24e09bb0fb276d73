"""The durations of finished runs, also of those whose store was pruned."""

import re
import shutil

import pytest
import torch

from pipeline.comparison.collection import find_duration
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.records import DefaultRecorder
from stages.runs import open_store, prune
from stages.runs.overview import read_durations, record_duration, working_seconds
from stages.system.files import md5

LINES = [
    "2026-01-01T00:00:00.000000Z  INFO stages::learner::loop: Executing training step for epoch 1",
    "2026-01-01T00:00:10.500000Z  INFO stages::learner::saver: Saving checkpoint 1 to x",
    "Traceback (most recent call last):",
    "2026-01-02T00:00:00.000000Z  INFO stages::learner::learner: Resuming after epoch 1",
    "2026-01-02T00:00:02.000000Z  INFO stages::learner::loop: Executing training step for epoch 2",
]


def finish(root, number, metrics):
    """Finish a run in its store below *root*; return the md5 of its metrics."""
    with open_store(root, {"number": number}) as store:
        (store.path / "metrics.json").write_text(metrics)
        (store.path / "experiment.log").write_text("\n".join(LINES))
        store.finish({"epoch": 2})
        record_duration(store.path)
    return md5(store.path / "metrics.json")


def test_duration_does_not_include_pauses():
    assert working_seconds(LINES) == 12.5
    assert working_seconds([]) is None


@pytest.mark.parametrize("interrupt_after", [1, 6], ids=["before the first epoch ended", "after it"])
@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_duration_does_not_include_the_time_between_two_processes(tmp_path, interrupt_after, has_checkpoints):
    log, data = tmp_path / "experiment.log", [(torch.rand(2, 4), torch.tensor([0, 1]))] * 4

    def fit(stops_after):
        builder = LearnerBuilder(tmp_path).metrics(LossMetric()).num_epochs(3)
        if has_checkpoints:
            builder.with_file_checkpointer(DefaultRecorder()).checkpoint("auto")
        interrupter = builder.interrupter()

        class Net(ClassificationStep, torch.nn.Linear):
            steps = 0

            def train_step(self, batch):
                self.steps += 1
                if self.steps == stops_after:
                    interrupter.stop()
                return super().train_step(batch)

        builder.build(net := Net(4, 2), torch.optim.SGD(net.parameters(), 0.1)).fit(data, data)

    fit(interrupt_after)
    log.write_text(re.sub("^20", "19", log.read_text(), flags=re.MULTILINE))
    fit(None)

    lines = log.read_text().splitlines()
    assert {line[:2] for line in lines} == {"19", "20"}
    assert 0 < working_seconds(lines) < 600


def test_duration_of_a_pruned_run_is_kept(root):
    metrics = finish(root, 1, "{}")
    assert find_duration(read_durations(root), metrics) == 12.5

    assert len(prune(root, 0)) == 1

    assert find_duration(read_durations(root), metrics) == 12.5


def test_duration_of_a_run_is_kept_if_its_store_is_resumed(root):
    metrics = finish(root, 1, "{}")

    later = finish(root, 1, '{"epoch": 3}')

    assert find_duration(read_durations(root), metrics) == find_duration(read_durations(root), later) == 12.5


def test_runs_with_equal_metrics_have_no_duration(root):
    metrics = finish(root, 1, "{}")
    prune(root, 0)

    finish(root, 2, "{}")

    assert find_duration(read_durations(root), metrics) is None
    assert find_duration(read_durations(root), None) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seconds": "1"}'])
def test_damaged_record_of_a_duration_is_ignored(root, content):
    metrics = finish(root, 1, "{}")
    prune(root, 0)
    [record] = root.rglob("*.json")
    record.write_text(content)

    assert find_duration(read_durations(root), metrics) is None


def test_run_finishes_although_its_duration_cannot_be_recorded(root):
    root.mkdir(exist_ok=True)
    (root / "durations").touch()

    metrics = finish(root, 1, "{}")

    assert find_duration(read_durations(root), metrics) is None


def test_project_without_runs_has_no_durations(tmp_path):
    shutil.rmtree(tmp_path)

    assert find_duration(read_durations(tmp_path), "0" * 32) is None
