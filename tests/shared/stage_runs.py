"""The stages of a project in this process, without DVC: load-data, build-learner, fit and save-model."""

from stop_after import StopAfter

from stages import data
from stages.build_learner import build_learner
from stages.contracts.errors import RunInterruptedError
from stages.contracts.events import Interrupter
from stages.fit import fit
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitContext, FitPaths

OUTPUTS = ("checkpoint", "train", "valid", "metrics.json", "plots")
DEFAULTS = {"num_epochs": 2, "batch_size": 8, "num_workers": 0, "device": "cpu", "num_threads": 1}


def load(folder, source, **options):
    """Run load-data, and return the prepared splits."""
    config = LoadDataConfig.model_validate({"source": source, "valid_fraction": 0.25, **options})
    load_data(config, LoadDataPaths(folder / "data"))
    return data.read(folder / "data", allowed=list_factories(source))


def list_factories(source):
    """Return the import path of the datasets of *source*, if it has one."""
    factory = source.get("factory", ())
    return [factory["kind"]] if isinstance(factory, dict) else [factory] if factory else []


def train(folder, model, stop_after=None, allowed=(), schedule=None, **fit_params):
    """Run build-learner and fit on the data in *folder*, and return the directory of the artifacts.

    A run that is interrupted after *stop_after* steps is resumed.
    """
    optimizer = {"kind": "adam", "learning_rate": 0.02}
    params = {"model": model, "optimizer": optimizer} | ({"schedule": schedule} if schedule else {})
    learner = BuildLearnerConfig.model_validate(params)
    build_learner(learner, BuildLearnerPaths(folder / "data/dataset.json", folder / "learner"))
    artifacts = folder / "artifacts"
    places = [artifacts / name for name in (*OUTPUTS, "plots/iterations", "plots/confusion.tsv")]
    paths = FitPaths(artifacts, folder / "learner", folder / "data", *places, folder / "runs")
    config = FitConfig.model_validate(DEFAULTS | fit_params)
    if stop_after is not None:
        interrupter = Interrupter()
        renderer = StopAfter(interrupter, stop_after)
        context = FitContext(interrupter=interrupter, renderer=renderer, allowed=allowed)
        try:
            fit(config, paths, context)
        except RunInterruptedError:
            pass
        else:
            raise AssertionError(f"the run has ended before step {stop_after}")
    fit(config, paths, FitContext(allowed=allowed))
    return artifacts


def read_outputs(artifacts):
    """Return the content of each output of fit by its path."""
    files = [
        file
        for name in OUTPUTS
        for file in [artifacts / name, *(artifacts / name).rglob("*")]
        if file.is_file()
    ]
    return {file.relative_to(artifacts).as_posix(): file.read_bytes() for file in files}
