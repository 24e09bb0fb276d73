"""The stage fit resumes, starts over, and publishes its results."""

import json
import platform
import shutil
import time

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from ranks import run_ranks
from torch.torch_version import TorchVersion

from pipeline.engine.stage_run import read_key_entries
from stages import data
from stages.build_learner import build_learner
from stages.contracts.errors import PluginError, RunInterruptedError, StageError
from stages.contracts.events import Interrupter
from stages.data.loaders import Transfer
from stages.fit import fit
from stages.learner.from_params import build_loaders, follow_main, join_ranks
from stages.metrics import areas
from stages.models import Mlp
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import CHANGES_NO_NUMBER, FitConfig, FitContext, FitPaths
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.runs import check_space, differences, runs
from stages.save_model import save_model


class OutOfMemory(Mlp):
    """A model that fails in the pass over the valid split after training."""

    def valid_step(self, batch):
        if self.validations == 2:
            raise MemoryError("50000 x 50000")
        self.validations += 1
        return super().valid_step(batch)

    validations = 0


def fit_two_epochs(folder, model, **config):
    """Fit *model* for two epochs on 40 samples of three classes, and return the artifact directory."""
    paths = prepare(folder, model)
    fit(FitConfig(num_epochs=2, num_workers=0, device="cpu", **config), paths)
    return folder / "artifacts"


def prepare(folder, model="mlp"):
    """Write 40 samples of three classes and a learner with *model*, and return the paths of the stage."""
    inputs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    prepared = data.prepare(data.split(data.Arrays(inputs, np.arange(40) % 3), 0.25, 0))
    data.write(folder / "data", prepared)
    learner = BuildLearnerConfig.model_validate({"model": {"kind": model}})
    build_learner(learner, BuildLearnerPaths(folder / "data/dataset.json", folder / "learner"))
    names = (
        "checkpoint",
        "train",
        "valid",
        "metrics.json",
        "plots",
        "plots/iterations",
        "plots/confusion.tsv",
    )
    places = [folder / "artifacts" / name for name in names]
    return FitPaths(folder / "artifacts", folder / "learner", folder / "data", *places, folder / "runs")


def stop_rank(paths):
    """Train on this rank until it is stopped, which rank 1 asks for, and return the time of its end."""
    config = FitConfig(num_epochs=50, batch_size=4, num_workers=0, device="cpu")
    context = FitContext(group=join_ranks(config), interrupter=Interrupter())
    if not context.group.is_main:
        context.interrupter.stop()
    with pytest.raises(RunInterruptedError):
        (fit if context.group.is_main else follow_main)(config, paths, context)
    return time.time_ns()


def reproduce(project, *options):
    """Run `dvc repro` with *options* and return its output."""
    return project.dvc("repro", *options).ok()


def tracked_files(folder):
    """Return the content of each output of the stages that DVC tracks, by its path in *folder*."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    untracked = ("runs/", "artifacts/telemetry/", "artifacts/experiment.log")
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(untracked)}


def test_build_of_torch_and_the_machine_change_no_tracked_output(tmp_path, monkeypatch):
    made = []
    for version, machine in (("2.13.0", "x86_64"), ("2.13.0+cpu", "x86_64"), ("2.13.0+cu130", "aarch64")):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        folder = tmp_path / version
        artifacts = fit_two_epochs(folder, "mlp")
        config = SaveModelConfig(exports=("safetensors", "burnpack"))
        (folder / "config.json").write_text(json.dumps({"save_model": config.model_dump(mode="json")}))
        outputs = (folder / "config.json", artifacts / "model.mpk.gz", artifacts / "exports")
        save_model(config, SaveModelPaths(artifacts / "checkpoint", *outputs))
        made.append(tracked_files(folder))

    assert {"learner/checkpoint/trainer-0.mpk.gz", "artifacts/checkpoint/trainer-2.mpk.gz"} < made[0].keys()
    assert made[1] == made[2] == made[0]


def test_fit_of_more_epochs_resumes_and_equals_an_uninterrupted_fit(tmp_path, capsys):
    fit_epochs(tmp_path / "resumed", 2)
    capsys.readouterr()

    resumed = fit_epochs(tmp_path / "resumed", 3)

    printed = capsys.readouterr().out
    assert "after epoch 2" in printed
    assert "epoch 1/3" not in printed
    assert read_results(resumed) == read_results(fit_epochs(tmp_path / "straight", 3))


def test_fit_of_fewer_epochs_starts_over(tmp_path, capsys):
    fit_epochs(tmp_path, 2)
    capsys.readouterr()

    artifacts = fit_epochs(tmp_path, 1)

    assert "epoch 1/1" in capsys.readouterr().out
    assert [path.name for path in (artifacts / "train").iterdir()] == ["epoch-1"]


def test_interrupted_fit_names_the_command_that_restores_the_outputs(tmp_path):
    """DVC has removed those of the last finished run before the stage."""
    context = FitContext(interrupter=Interrupter())
    context.interrupter.stop()

    with pytest.raises(RunInterruptedError, match="`dvc checkout` restores the last finished run"):
        fit(FitConfig(num_epochs=2, num_workers=0, device="cpu"), prepare(tmp_path), context)


def fit_epochs(folder, count, **config):
    """Fit for *count* epochs, as DVC does after it has removed the outputs, and return their directory."""
    shutil.rmtree(folder / "artifacts", ignore_errors=True)
    paths = prepare(folder)
    fit(FitConfig(num_epochs=count, num_workers=0, device="cpu", **config), paths)
    return folder / "artifacts"


def read_results(artifacts):
    """Return the content of each output of fit in *artifacts*, by its path."""
    names = ("checkpoint", "train", "valid", "plots", "metrics.json")
    paths = [path for name in names for path in [artifacts / name, *(artifacts / name).rglob("*")]]
    return {str(path.relative_to(artifacts)): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.long  # the test of fit of more epochs
def test_run_with_more_epochs_resumes_and_equals_uninterrupted_run(finished, tmp_path):
    """The results are equal in the workspace and in an isolated copy."""
    uninterrupted, isolated = (finished.copied_to(tmp_path / name) for name in ("straight", "isolated"))
    shutil.rmtree(uninterrupted.folder / ".runs")
    for project in (finished, uninterrupted):
        project.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")

    texts = [reproduce(finished), reproduce(uninterrupted)]
    texts.append(isolated.dvc("exp", "run", "--temp", "-n", "grown", "-S", "fit.num_epochs=3").ok())

    assert ["after epoch 2" in text for text in texts] == [True, False, True]
    assert (
        finished.files("artifacts", "dvc.lock").keys() == uninterrupted.files("artifacts", "dvc.lock").keys()
    )
    tracked = ("artifacts/checkpoint", "artifacts/train", "artifacts/valid", "artifacts/plots", "dvc.lock")
    assert finished.files(*tracked) == uninterrupted.files(*tracked)
    ref = isolated.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()[0]
    assert isolated.ok("git", "show", f"{ref}:dvc.lock") == (uninterrupted.folder / "dvc.lock").read_text()


def test_forced_rerun_of_finished_run_starts_over(finished):
    before = finished.files("artifacts/checkpoint", "artifacts/train", "dvc.lock")

    output = reproduce(finished, "-f", "-s", "fit")

    assert "epoch 1/2" in output
    assert "resuming" not in output
    assert finished.files("artifacts/checkpoint", "artifacts/train", "dvc.lock") == before


def test_finished_run_without_an_entry_in_dvc_lock_is_not_trained_again(finished):
    """The files are as after a kill of DVC between the end of training and the update of dvc.lock."""
    before = finished.files("artifacts/checkpoint", "dvc.lock")
    shutil.rmtree(finished.folder / ".dvc/cache/runs")
    shutil.rmtree(finished.folder / "artifacts/checkpoint")
    (finished.folder / "dvc.lock").unlink()

    output = finished.call("run").ok()

    assert "is already finished" in output
    assert finished.files("artifacts/checkpoint", "dvc.lock") == before


@pytest.fixture(scope="module")
def _keyed(_finished, tmp_path_factory):
    return _finished.copied_to(tmp_path_factory.mktemp("keyed") / "project")


@pytest.fixture
def keyed(_keyed, monkeypatch):
    """A finished project in the current folder, whose params a test edits but does not run."""
    params = _keyed.folder / "params.yaml"
    text = params.read_text()
    monkeypatch.chdir(_keyed.folder)
    yield _keyed
    params.write_text(text)


def key_differences(project):
    """Return the differences between the key of the finished run and that of the present params."""
    [run] = runs(project.folder / ".runs")
    return differences(run.entries, read_key_entries())


def test_key_has_every_param_that_can_change_a_number():
    changed = FitConfig(burn=0.22, hooks=["frozen_norms"], views=2)
    assert changed.key_params().keys() == FitConfig.model_fields.keys() - CHANGES_NO_NUMBER
    assert FitConfig(burn=0.22).key_params() == FitConfig().key_params() | {"burn": "0.22"}
    assert FitConfig(bucket=True).key_params() == FitConfig().key_params() | {"bucket": True}


def test_changed_param_changes_the_key_and_is_reported(keyed):
    keyed.edit("params.yaml", "batch_size: 32", "batch_size: 64")

    assert key_differences(keyed) == ["params.batch_size: 32 → 64"]
    assert "params.batch_size: 32 → 64" in keyed.call("runs", "show").out


@pytest.mark.parametrize("param", ["precision: bf16", "compile: true", "deterministic: true", "bucket: true"])
def test_param_of_the_computation_is_part_of_the_key(param, keyed):
    keyed.edit("params.yaml", "portable: true", param)

    assert {each.partition(":")[0] for each in key_differences(keyed)} == {
        "params.portable",
        f"params.{param.partition(':')[0]}",
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_workers: 0", "num_workers: 1"),
        ("device: auto", "device: cpu"),
        ("device: auto", "device: [cpu, cpu]"),
        ("device: auto", "device: all"),
        ("device: auto", "device: auto\n  strategy: fsdp"),
        ("device: auto", "device: auto\n  max_restarts: 2"),
        ("device: auto", "device: auto\n  rank_timeout_seconds: 60"),
        ("device: auto", 'device: auto\n  fast_path: "off"'),
        ("device: auto", "device: auto\n  step: captured"),
        ("device: auto", "device: auto\n  prefetch: 0"),
        ("device: auto", "device: auto\n  resident: true"),
        ("device: auto", "device: auto\n  telemetry: [cpu_use]"),
    ],
    ids=str,
)
def test_param_that_changes_no_number_keeps_the_key(old, new, keyed):
    keyed.edit("params.yaml", old, new)

    assert key_differences(keyed) == []


def test_epochs_are_part_of_the_key_if_the_schedule_ends_with_the_run(keyed):
    spec = keyed.folder / "artifacts/learner/learner.json"
    content = json.loads(spec.read_text())
    group = {"match": ".*", "schedule": {"kind": "constant", "warmup": "5 %"}}
    for changes, has_epochs in (
        ({"schedule": {"kind": "cosine", "num_iters": "100 %"}}, True),
        ({"schedule": {"kind": "constant"}}, False),
        ({"parameter_groups": [group]}, True),
    ):
        spec.write_text(json.dumps(content | changes))
        assert ("num_epochs" in read_key_entries()["params"]) == has_epochs


def test_loaders_of_both_splits_have_the_params_of_the_transfer():
    inputs = np.zeros((8, 4), dtype=np.float32)
    prepared = data.prepare(data.split(data.Arrays(inputs, np.arange(8) % 2), 0.25, 0))

    loaders = build_loaders(FitConfig(num_workers=0, prefetch=5, resident=False), prepared)

    assert [loader.transfer for loader in loaders] == [Transfer(prefetch=5, resident=False)] * 2


def test_full_disk_is_reported_before_training(tmp_path):
    with pytest.raises(StageError, match="Free some space, or keep fewer"):
        check_space(tmp_path, 10**18)


def test_required_space_is_limited_by_the_number_of_epochs(tmp_path):
    artifacts = fit_two_epochs(tmp_path, "mlp", keep={"last": 10**9})

    assert (artifacts / "checkpoint/trainer-1.mpk.gz").exists()


def test_status_prints_the_state_of_the_run(finished):
    assert "finished" in finished.call("status").ok()


def test_confusion_matrix_is_that_of_the_last_validation(finished):
    lines = (finished.folder / "artifacts/plots/confusion.tsv").read_text().splitlines()
    header, *cells = [line.split("\t") for line in lines]
    accuracy = json.loads((finished.folder / "artifacts/metrics.json").read_text())["valid"]["Accuracy"]

    hits = sum(int(count) for actual, predicted, count in cells if actual == predicted)
    samples = sum(int(count) for *_, count in cells)
    assert header == ["actual", "predicted", "count"]
    assert (samples, 100 * hits / samples) == (1438, pytest.approx(accuracy))


def test_failed_confusion_matrix_is_a_warning_and_results_are_published(tmp_path, caplog):
    artifacts = fit_two_epochs(tmp_path, f"{__name__}:OutOfMemory")

    assert json.loads((artifacts / "metrics.json").read_text())["epoch"] == 2
    assert (artifacts / "plots/confusion.tsv").read_text() == "actual\tpredicted\tcount\n"
    assert "the confusion matrix cannot be computed: MemoryError('50000 x 50000')" in caplog.text


def test_metric_without_batch_values_has_epoch_values_and_empty_batch_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(areas, "MAX_BATCH_CLASSES", 2)

    artifacts = fit_two_epochs(tmp_path, "mlp", metrics=({"kind": "loss"}, {"kind": "auroc"}), batch_size=4)

    log = (artifacts / "valid/epoch-2/AUROC_[Macro].log").read_text()
    value = json.loads((artifacts / "metrics.json").read_text())["valid"]["AUROC [Macro]"]
    assert log == f"{value},final\n"
    assert (artifacts / "plots/iterations/valid/AUROC_[Macro].tsv").read_text() == "step\tepoch\tvalue\n"


def test_regression_has_an_empty_confusion_matrix(project):
    inputs = np.linspace(0, 1, 64, dtype=np.float32)[:, None]
    np.savez(project.folder / "line.npz", inputs=inputs, targets=2 * inputs)
    project.edit("params.yaml", "kind: digits\n    path: null", "kind: npz\n    path: line.npz")
    project.use_model("mlp_regressor")
    project.edit("params.yaml", "[loss, accuracy]", "[loss]")
    project.add_deps()

    project.call("run").ok()

    assert (project.folder / "artifacts/plots/confusion.tsv").read_text() == "actual\tpredicted\tcount\n"
    shown = json.loads(project.dvc("plots", "show", "--json").out)
    assert "errors" not in shown
    assert "artifacts/plots/iterations/valid/Loss.tsv" in shown["data"]


def test_additional_loggers_write_untracked_files_and_change_no_number(tmp_path):
    plain = fit_two_epochs(tmp_path / "plain", "mlp")

    logged = fit_two_epochs(tmp_path / "logged", "mlp", loggers=("tsv", "json_lines"), telemetry=())

    rows = (logged / "telemetry/tsv/train.tsv").read_text().splitlines()
    assert rows[0] == "epoch\titeration\tname\tvalue\tcount"
    assert [row.split("\t")[:3] for row in rows[1:3]] == [["1", "1", "Loss"], ["1", "1", "Accuracy"]]
    assert len((logged / "telemetry/json_lines/valid.jsonl").read_text().splitlines()) == 4
    for name in ("metrics.json", "train/epoch-2/Loss.log", "checkpoint/model-2.mpk.gz"):
        assert (logged / name).read_bytes() == (plain / name).read_bytes()
    assert not (plain / "telemetry/tsv").exists()


def test_telemetry_is_logged_and_changes_no_number(tmp_path):
    without = fit_two_epochs(tmp_path / "without", "mlp", telemetry=())

    default = fit_two_epochs(tmp_path / "default", "mlp")

    logged = [f"{name}.log" for name in ("Data_Wait", "Iteration_Speed", "Peak_Memory")]
    assert sorted(path.name for path in (default / "telemetry/train/epoch-2").iterdir()) == logged
    assert not (without / "telemetry").exists()
    for name in ("metrics.json", "train/epoch-2/Loss.log", "checkpoint/model-2.mpk.gz"):
        assert (default / name).read_bytes() == (without / name).read_bytes()
    assert sorted(path.name for path in (default / "train/epoch-2").iterdir()) == ["Accuracy.log", "Loss.log"]


def test_telemetry_that_is_also_in_metrics_is_measured_once(tmp_path):
    fitted = fit_two_epochs(tmp_path, "mlp", metrics=({"kind": "loss"}, {"kind": "iteration_speed"}))

    assert (fitted / "telemetry/train/epoch-2/Iteration_Speed.log").exists()


def test_metric_of_the_model_is_refused_as_telemetry(tmp_path):
    with pytest.raises(ValidationError, match="'loss' measures the model: add it to fit.metrics instead"):
        FitConfig(telemetry=({"kind": "loss"},))
    with pytest.raises(PluginError, match="AccuracyMetric.telemetry is not True: set it if"):
        fit_two_epochs(tmp_path, "mlp", telemetry=({"kind": "stages.metrics.classification:AccuracyMetric"},))


def test_logger_by_import_path_receives_its_place_and_its_arguments(tmp_path):
    path = f"{__name__}:LastValue"

    logged = fit_two_epochs(tmp_path, "mlp", loggers=({"kind": path, "digits": 2},), telemetry=())

    assert (logged / "telemetry/LastValue/valid").read_text().startswith("Accuracy ")


def test_object_without_the_methods_of_a_logger_is_rejected(tmp_path):
    with pytest.raises(
        PluginError, match="'builtins:dict' must have the methods of MetricLogger; found a dict"
    ):
        fit_two_epochs(tmp_path, "mlp", loggers=("builtins:dict",))


class LastValue:
    """A user's logger, which writes the last value that it receives."""

    def __init__(self, path, digits=3):
        self.path, self.digits = path, digits

    def log(self, epoch, name, value, count):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{name} {value:.{self.digits}f}")

    def log_final(self, epoch, name, value):
        self.log(epoch, name, value, 0)

    def flush(self):
        """Nothing is buffered."""

    close = flush


def test_stopped_ranks_end_after_rank_0_has_saved(tmp_path):
    """An agent of torch kills the ranks of its host 30 seconds after the first of them has exited."""
    paths = prepare(tmp_path)

    ends = run_ranks(stop_rank, 2, paths)

    [saved] = paths.runs.glob("*/steps/trainer-*")
    assert min(ends) >= saved.stat().st_mtime_ns
