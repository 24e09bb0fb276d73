"""Checkpoints of a training loop of the user's own."""

import itertools

import pytest
import torch
from torch import nn

from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.history import Split, Value
from stages.learner import LoopCheckpoints


class Loop:
    """A loop over random batches, with a network that has running statistics, and an optimizer."""

    def __init__(self, directory, build_optimizer, name="optimizer"):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = build_optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        parts = {name: self.optimizer, "scheduler": self.scheduler}
        self.checkpoints = LoopCheckpoints(directory, self.model, **parts)

    def run(self, last_epoch):
        for epoch in range(self.checkpoints.restore() + 1, last_epoch + 1):
            torch.manual_seed(epoch)
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 3)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.checkpoints.history.add(Value(epoch, Split.TRAIN, "Loss", loss.item()))
            self.checkpoints.save(epoch)


def read_files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    "build_optimizer",
    [
        torch.optim.Adam,
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    ],
)
def test_resumed_loop_equals_an_uninterrupted_one(tmp_path, build_optimizer):
    Loop(tmp_path / "a", build_optimizer).run(5)

    Loop(tmp_path / "b", build_optimizer).run(2)
    resumed = Loop(tmp_path / "b", build_optimizer)
    resumed.run(5)

    assert read_files(tmp_path / "b") == read_files(tmp_path / "a")
    assert list(resumed.checkpoints.history.series(Split.TRAIN, "Loss")) == [1, 2, 3, 4, 5]


def test_two_newest_checkpoints_are_kept(tmp_path):
    Loop(tmp_path, torch.optim.Adam).run(5)

    assert sorted(path.name for path in tmp_path.glob("trainer-*")) == [
        "trainer-4.mpk.gz",
        "trainer-5.mpk.gz",
    ]


def test_files_that_a_killed_process_did_not_remove_are_removed_at_the_next_start(tmp_path):
    Loop(tmp_path, torch.optim.Adam).run(2)
    old = read_files(tmp_path)
    Loop(tmp_path, torch.optim.Adam).run(4)
    made = read_files(tmp_path)
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".model-5.mpk.gz.part").touch()

    assert Loop(tmp_path, torch.optim.Adam).checkpoints.restore() == 4

    assert read_files(tmp_path) == made


def test_loop_resumes_from_the_newest_intact_checkpoint(tmp_path):
    Loop(tmp_path / "a", torch.optim.Adam).run(3)
    Loop(tmp_path / "b", torch.optim.Adam).run(3)
    (tmp_path / "b/model-3.mpk.gz").write_bytes(b"damaged")

    assert Loop(tmp_path / "b", torch.optim.Adam).checkpoints.restore() == 2
    Loop(tmp_path / "b", torch.optim.Adam).run(3)

    assert read_files(tmp_path / "b") == read_files(tmp_path / "a")


def test_checkpoint_of_other_parts_or_another_model_is_refused(tmp_path):
    Loop(tmp_path, torch.optim.Adam).run(1)
    other = LoopCheckpoints(tmp_path, nn.Linear(3, 4), optimizer=Loop(tmp_path, torch.optim.Adam).optimizer)

    with pytest.raises(
        CheckpointError, match="has the parts optimizer, scheduler, and the loop has critic, scheduler"
    ):
        Loop(tmp_path, torch.optim.Adam, name="critic").checkpoints.restore()
    with pytest.raises(CheckpointError, match="the loop has optimizer. Pass the same parts"):
        other.restore()
    with pytest.raises(CheckpointError, match="does not fit this model and its optimizers"):
        loop = Loop(tmp_path, torch.optim.Adam)
        LoopCheckpoints(
            tmp_path, nn.Linear(3, 4), optimizer=loop.optimizer, scheduler=loop.scheduler
        ).restore()


def test_value_that_no_checkpoint_can_hold_is_refused_with_its_place(tmp_path):
    class Counter:
        def state_dict(self):
            return {"numbers": itertools.count()}

    with pytest.raises(
        RecordError, match=r"counter.state_dict\(\)\['numbers'\] is of the type itertools.count"
    ):
        LoopCheckpoints(tmp_path, nn.Linear(1, 1), counter=Counter())
