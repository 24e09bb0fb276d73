"""Warm starts by build-learner, and the results of `fit` after them."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from stages.build_learner import build_learner
from stages.checkpoints import FileCheckpointer
from stages.contracts.errors import CheckpointError
from stages.fit import fit
from stages.learner.run_state import history_of
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitPaths
from stages.records import DefaultRecorder

LEARNER = {
    "model": {"kind": "mlp"},
    "optimizer": {"kind": "adam", "learning_rate": 0.002},
    "schedule": {"kind": "cosine", "num_iters": 40},
}
RUN = {"batch_size": 512, "num_workers": 0, "keep": {"last": 1, "best": [{"metric": "Accuracy"}]}}
"""The lowest accuracy counts as the best, so that the best epoch is one of the first run."""


@dataclass(frozen=True)
class Trained:
    """An artifact directory."""

    folder: Path

    def files(self, *names):
        found = {}
        for name in names:
            base = self.folder / name
            for path in [base] if base.is_file() else base.rglob("*"):
                if path.is_file():
                    found[path.relative_to(self.folder).as_posix()] = path.read_bytes()
        return found

    def checkpoint(self, epoch):
        return FileCheckpointer(self.folder / "checkpoint", DefaultRecorder()).restore(epoch)

    @property
    def epochs(self):
        return FileCheckpointer(self.folder / "checkpoint", DefaultRecorder()).list_saved()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    load_data(LoadDataConfig(), LoadDataPaths(folder))
    return folder


@pytest.fixture(scope="module")
def train(dataset, tmp_path_factory):
    """A function that builds a learner, trains it, and returns its artifact directory."""

    def trained(epochs, origin=None, *, learner=None, **changes):
        folder = tmp_path_factory.mktemp("run") / "artifacts"
        start = build(dataset, folder / "learner", origin, **(learner or {}))
        outputs = ("checkpoint", "train", "valid", "metrics.json", "plots")
        names = (*outputs, "plots/iterations", "plots/confusion.tsv")
        paths = FitPaths(folder, start, dataset, *(folder / name for name in names), folder.parent / "runs")
        fit(FitConfig.model_validate({**RUN, "num_epochs": epochs, **changes}), paths)
        return Trained(folder)

    return trained


def build(dataset, target, origin=None, **changes):
    config = BuildLearnerConfig.model_validate({**LEARNER, **changes})
    build_learner(config, BuildLearnerPaths(dataset / "dataset.json", target), origin)
    return target


def from_epoch(epoch, folder, **more):
    return {"checkpoint": {"path": str(folder), "epoch": epoch, **more}}


@pytest.fixture(scope="module")
def three(train):
    return train(3)


def test_three_epochs_resumed_to_five_equal_five_uninterrupted_epochs(three, train):
    straight = train(5)

    resumed = train(5, three.folder, learner=from_epoch(3, three.folder))

    same = ("train", "valid", "metrics.json", "plots")
    assert resumed.files(*same) == straight.files(*same)
    assert resumed.epochs == straight.epochs == [1, 5]
    before, now = straight.files("checkpoint"), resumed.files("checkpoint")
    assert {name for name in before if before[name] != now[name]} == {"checkpoint/trainer-5.mpk.gz"}
    old, new = straight.checkpoint(5).trainer, resumed.checkpoint(5).trainer
    assert {key for key in old if str(old[key]) != str(new[key])} == {"identity"}


def test_changed_options_apply_from_the_epoch_of_the_warm_start(three, train):
    changed = {"optimizer": {"kind": "adam", "learning_rate": 0.1, "weight_decay": 0.5}}

    resumed = train(4, three.folder, learner=from_epoch(3, three.folder) | changed, batch_size=256)

    (group,) = resumed.checkpoint(4).trainer["optim"]["param_groups"]
    assert group["weight_decay"] == 0.5
    assert resumed.checkpoint(4).trainer["scheduler"] == {"iteration": 3 * 3 + 6}
    old = three.files("train", "valid")
    assert {name: data for name, data in resumed.files("train", "valid").items() if name in old} == old


def test_weights_only_allows_another_optimizer(three, train, dataset, tmp_path):
    sgd = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}
    with pytest.raises(CheckpointError, match="that of Adam, and the optimizer is a SGD.*weights_only: true"):
        build(dataset, tmp_path / "learner", three.folder, **sgd, **from_epoch(3, three.folder))

    wanted = from_epoch(3, three.folder, weights_only=True)
    start = Trained(build(dataset, tmp_path / "learner", three.folder, **sgd, **wanted))
    resumed = train(4, three.folder, learner=sgd | wanted)

    assert start.files("checkpoint/model-3.mpk.gz") == three.files("checkpoint/model-3.mpk.gz")
    assert start.checkpoint(3).trainer["scheduler"] == {"iteration": 0}
    assert set(three.files("train", "valid")) < set(resumed.files("train", "valid"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"kind": "cnn"}}, ["does not fit the Cnn", "missing: conv1.weight", "unexpected: "]),
        ({"model": {"kind": "mlp", "hidden_sizes": [8]}}, ["of another shape", "expected F32 [8"]),
        ({"optimizer": {"kind": "adam", "amsgrad": True}}, ["ran without amsgrad", "weights_only: true"]),
        (from_epoch(2, "old"), ["epoch 2 of old has no such checkpoint; found those of epoch 1, 3"]),
    ],
)
def test_checkpoint_that_does_not_fit_is_an_error_with_its_reason(three, dataset, tmp_path, changes, words):
    with pytest.raises(CheckpointError) as error:
        build(dataset, tmp_path / "learner", three.folder, **from_epoch(3, "old") | changes)

    for each in words:
        assert each in str(error.value)


@pytest.fixture
def burns(three, tmp_path):
    """A directory such as Burn writes, without trainer records."""
    folder = tmp_path / "burns"
    shutil.copytree(three.folder, folder)
    for path in (folder / "checkpoint").glob("trainer-*"):
        path.unlink()
    return folder


def test_directory_that_burn_wrote_restores_weights_moments_and_logs(three, burns, dataset, tmp_path, capsys):
    start = Trained(build(dataset, tmp_path / "learner", burns, **from_epoch(3, burns)))

    assert start.files("train", "valid") == three.files("train", "valid")
    for part in ("model", "optim"):
        name = f"checkpoint/{part}-3.mpk.gz"
        assert start.files(name) == three.files(name)
    output = capsys.readouterr().out
    assert "model-3.mpk.gz: its weights; the optimizer resumes from optim-3.mpk.gz; the schedule" in output
    assert len(history_of(start.checkpoint(3))) == 3 * 4


@pytest.mark.parametrize("epoch", [None, 3])
def test_single_record_restores_its_weights(three, burns, dataset, tmp_path, capsys, train, epoch):
    record = burns / "checkpoint/model-3.mpk.gz"
    (burns / "checkpoint/optim-3.mpk.gz").unlink()
    wanted = from_epoch(epoch, record)

    start = Trained(build(dataset, tmp_path / "learner", record, **wanted))
    done = train(4, record, learner=wanted)

    model = f"checkpoint/model-{epoch or 0}.mpk.gz"
    assert start.files(model)[model] == record.read_bytes()
    assert (
        "the optimizer starts from the beginning; the schedule starts from the beginning"
        in capsys.readouterr().out
    )
    assert len(list((done.folder / "train").iterdir())) == 4


def test_missing_epoch_is_an_error_that_lists_the_records_found(burns, dataset, tmp_path):
    with pytest.raises(CheckpointError, match=r"found: model-1.mpk.gz, model-3.mpk.gz"):
        build(dataset, tmp_path / "learner", burns, **from_epoch(2, burns))
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        build(dataset, tmp_path / "learner", Path("nowhere"), **from_epoch(2, "nowhere"))
