"""A run that is stopped by hand leaves no result."""

import json

import pytest

from pipeline.engine.reproduce import reproduce
from stages.contracts.errors import RunInterruptedError
from stages.renderers import NoRenderer


class Stopping(NoRenderer):
    def step(self, progress):
        if progress.epoch == 3:
            progress.interrupter.stop()


def test_a_stopped_fit_is_not_recorded_and_the_old_outputs_stay(finished, monkeypatch):
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
    before = finished.files("artifacts", "data", "dvc.lock")
    monkeypatch.chdir(finished.folder)

    with pytest.raises(RunInterruptedError, match="after epoch 2 of 3") as stopped:
        reproduce("fit", Stopping())

    assert stopped.value.exit_code == 130
    assert finished.files("artifacts", "data", "dvc.lock") == before
    assert json.loads((finished.folder / "artifacts/metrics.json").read_text())["epoch"] == 2
