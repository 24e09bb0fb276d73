"""Warm starts by build-learner, and the results of `fit` after a warm start."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.build_learner import build_learner
from stages.contracts.errors import CheckpointError
from stages.fit import fit
from stages.learner import Hook
from stages.learner.run_state import history_of
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.models import ClassificationStep
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitPaths
from stages.records import DefaultRecorder
from stages.runs import FileCheckpointer

LEARNER_PARAMS = {
    "model": {"kind": "mlp"},
    "optimizer": {"kind": "adam", "learning_rate": 0.002},
    "schedule": {"kind": "cosine", "num_iters": 40},
}
FIT_PARAMS = {"batch_size": 512, "num_workers": 0, "keep": {"last": 1, "best": [{"metric": "Accuracy"}]}}
"""The lowest accuracy counts as the best, so that the best epoch is one of the first run."""


@dataclass(frozen=True)
class ArtifactDirectory:
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
    """Return a function that builds a learner, trains it, and returns its artifact directory."""

    def train_learner(epochs, origin=None, *, learner=None, **changes):
        folder = tmp_path_factory.mktemp("run") / "artifacts"
        initial = build_start(dataset, folder / "learner", origin, **(learner or {}))
        outputs = ("checkpoint", "train", "valid", "metrics.json", "plots")
        names = (*outputs, "plots/iterations", "plots/confusion.tsv")
        paths = FitPaths(folder, initial, dataset, *(folder / name for name in names), folder.parent / "runs")
        fit(FitConfig.model_validate({**FIT_PARAMS, "num_epochs": epochs, **changes}), paths)
        return ArtifactDirectory(folder)

    return train_learner


def build_start(dataset, target, origin=None, **changes):
    """Build a learner from the params with *changes* in *target*, and return *target*."""
    config = BuildLearnerConfig.model_validate({**LEARNER_PARAMS, **changes})
    build_learner(config, BuildLearnerPaths(dataset / "dataset.json", target), origin)
    return target


def start_from(epoch, folder, **more):
    """Return the params of a warm start from *epoch* in *folder*."""
    return {"checkpoint": {"path": str(folder), "epoch": epoch, **more}}


@pytest.fixture(scope="module")
def three_epochs(train):
    return train(3)


class Orthogonal(ClassificationStep, nn.Linear):
    """A model whose initial weights LAPACK computes, with the threads of torch."""

    def __init__(self, input_shape, num_classes, width=64):
        super().__init__(width, width)
        nn.init.orthogonal_(self.weight)


@pytest.mark.parametrize("portable", [False, True])
def test_initial_weights_do_not_depend_on_the_number_of_cores(dataset, tmp_path, portable):
    config = BuildLearnerConfig.model_validate({"model": {"kind": f"{__name__}:Orthogonal"}})
    models = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        paths = BuildLearnerPaths(dataset / "dataset.json", tmp_path / f"{num_threads}")
        build_learner(config, paths, portable=portable)
        models.append((paths.learner / "checkpoint/model-0.mpk.gz").read_bytes())
    torch.set_num_threads(1)

    assert models[0] == models[1]


def test_initial_checkpoint_that_cannot_be_written_is_an_error(dataset, tmp_path):
    (tmp_path / "learner/checkpoint/model-0.mpk.gz").mkdir(parents=True)  # in place of the file

    with pytest.raises(
        CheckpointError, match="the checkpoint of epoch 0 belongs to the result and could not"
    ):
        build_start(dataset, tmp_path / "learner")


def test_three_epochs_resumed_to_five_equal_five_uninterrupted_epochs(three_epochs, train):
    uninterrupted = train(5)

    resumed = train(5, three_epochs.folder, learner=start_from(3, three_epochs.folder))

    equal_outputs = ("train", "valid", "metrics.json", "plots")
    assert resumed.files(*equal_outputs) == uninterrupted.files(*equal_outputs)
    assert resumed.epochs == uninterrupted.epochs == [1, 5]
    before, now = uninterrupted.files("checkpoint"), resumed.files("checkpoint")
    assert {name for name in before if before[name] != now[name]} == {"checkpoint/trainer-5.mpk.gz"}
    old, new = uninterrupted.checkpoint(5).trainer, resumed.checkpoint(5).trainer
    assert {key for key in old if str(old[key]) != str(new[key])} == {"identity"}


def test_changed_options_apply_from_the_epoch_of_the_warm_start(three_epochs, train, caplog):
    changed = {"optimizer": {"kind": "adam", "learning_rate": 0.1, "weight_decay": 0.5}}

    resumed = train(
        4, three_epochs.folder, learner=start_from(3, three_epochs.folder) | changed, batch_size=256
    )

    assert "replaces arguments" not in caplog.text
    (group,) = resumed.checkpoint(4).trainer["optim"]["param_groups"]
    assert group["weight_decay"] == 0.5
    assert resumed.checkpoint(4).trainer["scheduler"] == {"iteration": 3 * 3 + 6}
    old = three_epochs.files("train", "valid")
    assert {name: data for name, data in resumed.files("train", "valid").items() if name in old} == old


PLATEAU = {"kind": "reduce_on_plateau", "monitor": "Accuracy", "mode": "max", "patience": 0}
ANNEALING = {"kind": "cosine_annealing", "per": "batch", "T_max": 9}


@pytest.mark.parametrize("schedule", [PLATEAU, ANNEALING], ids=["plateau", "annealing"])
def test_warm_start_resumes_a_scheduler_of_torch(train, schedule):
    uninterrupted = train(3, learner={"schedule": schedule})

    first = train(2, learner={"schedule": schedule})
    start = {"schedule": schedule, "checkpoint": {"path": str(first.folder), "epoch": 2}}
    resumed = train(3, first.folder, learner=start)

    for part in ("model", "optim", "scheduler"):
        name = f"checkpoint/{part}-3.mpk.gz"
        assert resumed.files(name) == uninterrupted.files(name)


def schedule_biases(per):
    """Return params in which the biases have a schedule of their own."""
    schedule = {"kind": "exponential", "gamma": 0.9, "per": per}
    return {"parameter_groups": [{"match": "bias", "learning_rate": 0.01, "schedule": schedule}]}


@pytest.mark.parametrize("per", ["batch", "epoch"])
def test_warm_start_resumes_the_schedule_of_a_group(train, per):
    uninterrupted = train(3, learner=schedule_biases(per))

    first = train(2, learner=schedule_biases(per))
    resumed = train(3, first.folder, learner=schedule_biases(per) | start_from(2, first.folder))

    for part in ("model", "optim", "scheduler"):
        name = f"checkpoint/{part}-3.mpk.gz"
        assert resumed.files(name) == uninterrupted.files(name)


def test_schedule_of_a_group_starts_from_the_beginning_with_the_weights_of_a_run(three_epochs, train):
    file = three_epochs.folder / "checkpoint/model-3.mpk.gz"
    starts = {
        three_epochs.folder: start_from(3, three_epochs.folder, weights_only=True),
        file: start_from(None, file),
    }

    runs = [train(4, origin, learner=schedule_biases("batch") | start) for origin, start in starts.items()]

    assert [run.checkpoint(4).trainer["scheduler"]["groups"] for run in runs] == [
        [{"iteration": 3}],
        [{"iteration": 12}],
    ]


def test_warm_start_continues_the_average_of_the_weights(train):
    averaging = {"kind": "ema", "decay": 0.9}
    uninterrupted = train(3, averaging=averaging)

    first = train(2, averaging=averaging)
    start = {"checkpoint": {"path": str(first.folder), "epoch": 2}}
    resumed = train(3, first.folder, learner=start, averaging=averaging)

    found, expected = (run.checkpoint(3).trainer["average"] for run in (resumed, uninterrupted))
    assert found["count"] == expected["count"] > 2
    assert all(torch.equal(each, expected["state"][name]) for name, each in found["state"].items())


def test_warm_start_with_other_options_of_a_scheduler_of_torch_is_refused(train, dataset, tmp_path):
    first = train(1, learner={"schedule": ANNEALING})
    changed = {"schedule": {**ANNEALING, "T_max": 5}, "checkpoint": {"path": "x", "epoch": 1}}

    with pytest.raises(CheckpointError, match="its schedule ran with T_max: 9.*weights_only: true"):
        build_start(dataset, tmp_path / "learner", first.folder, **changed)


def test_warm_start_with_another_rate_for_a_scheduler_of_torch_is_refused(train, dataset, tmp_path):
    """Its steps start from the rate before, so the learning rate in params would have no effect."""
    first = train(1, learner={"schedule": ANNEALING})
    changed = {"optimizer": {"kind": "adam", "learning_rate": 0.1}, **start_from(1, first.folder)}

    with pytest.raises(CheckpointError, match="began at the rate 0.002, and this one begins at 0.1"):
        build_start(dataset, tmp_path / "learner", first.folder, schedule=ANNEALING, **changed)


@pytest.mark.parametrize(
    "select",
    [
        lambda layer: {"freeze": layer},
        lambda layer: {"parameter_groups": [{"match": layer, "learning_rate": 0.02}]},
    ],
)
def test_state_of_a_parameter_never_becomes_that_of_another_of_its_shape(train, dataset, tmp_path, select):
    """Both runs have as many parameters in each group, and layers 1 and 2 have equal shapes."""
    params = {
        "model": {"kind": "mlp", "hidden_sizes": [8, 8, 8]},
        "optimizer": {"kind": "torch.optim:NAdam", "learning_rate": 0.01},
    }
    first = train(1, learner={**params, **select(["layers.1"])})

    with pytest.raises(CheckpointError, match=r"layers\.2.*at which the optimizer has layers\.1"):
        build_start(
            dataset, tmp_path, first.folder, **params, **select(["layers.2"]), **start_from(1, first.folder)
        )


def test_weights_only_permits_another_optimizer(three_epochs, train, dataset, tmp_path):
    sgd = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}
    with pytest.raises(CheckpointError, match="that of Adam, and the optimizer is a SGD.*weights_only: true"):
        build_start(
            dataset, tmp_path / "learner", three_epochs.folder, **sgd, **start_from(3, three_epochs.folder)
        )

    checkpoint = start_from(3, three_epochs.folder, weights_only=True)
    initial = ArtifactDirectory(
        build_start(dataset, tmp_path / "learner", three_epochs.folder, **sgd, **checkpoint)
    )
    resumed = train(4, three_epochs.folder, learner=sgd | checkpoint)

    assert initial.files("checkpoint/model-3.mpk.gz") == three_epochs.files("checkpoint/model-3.mpk.gz")
    assert initial.checkpoint(3).trainer["scheduler"] == {"iteration": 0}
    assert set(three_epochs.files("train", "valid")) < set(resumed.files("train", "valid"))


class CountUpdates(Hook):
    """A hook whose state is the number of its calls."""

    def __init__(self):
        self.calls = 0

    def after_step(self, context):
        self.calls += 1

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict["calls"]


def test_hooks_and_the_scale_of_the_loss_start_from_the_beginning_with_the_weights_only(train):
    options = {"hooks": [f"{__name__}:CountUpdates"], "precision": "fp16"}
    first = train(1, **options)

    checkpoint = start_from(1, first.folder, weights_only=True)
    resumed = train(2, first.folder, learner=checkpoint, **options)

    before, after = first.checkpoint(1).trainer, resumed.checkpoint(2).trainer
    assert after["hooks"] == before["hooks"] == {"0 CountUpdates": {"calls": 3}}
    assert after["scaler"] == before["scaler"]


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"model": {"kind": "cnn"}}, ["does not fit the Cnn", "missing: conv1.weight", "unexpected: "]),
        ({"model": {"kind": "mlp", "hidden_sizes": [8]}}, ["of another shape", "expected F32 [8"]),
        ({"optimizer": {"kind": "adam", "amsgrad": True}}, ["ran without amsgrad", "weights_only: true"]),
        (start_from(2, "old"), ["epoch 2 of old has no such checkpoint; found those of epoch 1, 3"]),
    ],
)
def test_checkpoint_that_does_not_fit_is_an_error_with_its_reason(
    three_epochs, dataset, tmp_path, changes, messages
):
    with pytest.raises(CheckpointError) as error:
        build_start(dataset, tmp_path / "learner", three_epochs.folder, **start_from(3, "old") | changes)

    for each in messages:
        assert each in str(error.value)


@pytest.fixture
def burn_directory(three_epochs, tmp_path):
    """Return a directory as Burn writes it, without trainer records."""
    folder = tmp_path / "burn"
    shutil.copytree(three_epochs.folder, folder)
    for path in (folder / "checkpoint").glob("trainer-*"):
        path.unlink()
    return folder


def test_directory_of_burn_restores_weights_moments_and_logs(
    three_epochs, burn_directory, dataset, tmp_path, capsys
):
    initial = ArtifactDirectory(
        build_start(dataset, tmp_path / "learner", burn_directory, **start_from(3, burn_directory))
    )

    assert initial.files("train", "valid") == three_epochs.files("train", "valid")
    for part in ("model", "optim"):
        name = f"checkpoint/{part}-3.mpk.gz"
        assert initial.files(name) == three_epochs.files(name)
    output = capsys.readouterr().out
    assert "model-3.mpk.gz: its weights; the optimizer resumes from optim-3.mpk.gz; the schedule" in output
    assert len(history_of(initial.checkpoint(3))) == 3 * 4


@pytest.mark.parametrize("epoch", [None, 3])
def test_single_record_restores_its_weights(
    three_epochs, burn_directory, dataset, tmp_path, capsys, train, epoch
):
    record = burn_directory / "checkpoint/model-3.mpk.gz"
    (burn_directory / "checkpoint/optim-3.mpk.gz").unlink()
    checkpoint = start_from(epoch, record)

    initial = ArtifactDirectory(build_start(dataset, tmp_path / "learner", record, **checkpoint))
    resumed = train(4, record, learner=checkpoint)

    model = f"checkpoint/model-{epoch or 0}.mpk.gz"
    assert initial.files(model)[model] == record.read_bytes()
    assert (
        "the optimizer starts from the beginning; the schedule starts from the beginning"
        in capsys.readouterr().out
    )
    assert len(list((resumed.folder / "train").iterdir())) == 4


def test_missing_epoch_is_an_error_that_lists_the_records_found(burn_directory, dataset, tmp_path):
    with pytest.raises(CheckpointError, match=r"found: model-1.mpk.gz, model-3.mpk.gz"):
        build_start(dataset, tmp_path / "learner", burn_directory, **start_from(2, burn_directory))
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        build_start(dataset, tmp_path / "learner", Path("nowhere"), **start_from(2, "nowhere"))
