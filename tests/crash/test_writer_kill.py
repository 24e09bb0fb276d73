"""A run is killed while it trains and a thread writes a checkpoint."""

import os
import signal
import threading

import pytest
import torch
from run_files import read_run_files
from small_run import run_in_child
from torch import nn
from waiting import LIMIT_SECONDS

from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

EPOCHS, BATCHES = 3, 4


class Net(ClassificationStep, nn.Sequential):
    pass


class Killer(NamedMpkGzFileRecorder, NoRenderer):
    """Kills the process between two files of a checkpoint, when the next epoch has made a step."""

    def __init__(self, name):
        super().__init__()
        self.name, self.stepped = name, threading.Event()

    def step(self, progress):
        if progress.epoch == EPOCHS:
            self.stepped.set()

    def record(self, item, path):
        path = super().record(item, path)
        if path.name.startswith(self.name):
            assert self.stepped.wait(LIMIT_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        return path


def fit(directory, recorder):
    """Train in *directory* from the newest checkpoint, if any; return the position that it resumed after."""
    torch.manual_seed(3)
    batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(BATCHES)]
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).seed(1).devices(["cpu"]).metrics(LossMetric())
    builder.with_file_checkpointer(recorder).checkpoint("auto").renderer(NoRenderer())
    if isinstance(recorder, Killer):
        builder.with_progress_logger(recorder)
    learner = builder.build(Net(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)), Adam(), 0.05)
    learner.fit(batches, batches)
    return learner.resumed


@pytest.mark.parametrize("name", [f"{part}-{EPOCHS - 1}." for part in ("model", "optim", "scheduler")])
def test_run_killed_while_a_checkpoint_is_written_resumes_to_the_same_bytes(name, tmp_path):
    code, _, _ = run_in_child(lambda: fit(tmp_path / "killed", Killer(name)))

    again, resumed, text = run_in_child(lambda: fit(tmp_path / "killed", NamedMpkGzFileRecorder()))
    run_in_child(lambda: fit(tmp_path / "untouched", NamedMpkGzFileRecorder()))

    assert (code, again, resumed) == (-signal.SIGKILL, 0, f"after epoch {EPOCHS - 2}"), text
    assert read_run_files(tmp_path / "killed") == read_run_files(tmp_path / "untouched")
