"""Runs of the stages as functions, of a model that trains in milliseconds."""

from stage_runs import list_factories

from stages.build_learner import build_learner
from stages.contracts.text import to_json
from stages.fit import fit
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitContext, FitPaths
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.save_model import save_model


def prepare(folder, source, **options):
    """Write the data of *source* to *folder*, and return its config."""
    config = LoadDataConfig.model_validate({"source": source, **options})
    load_data(config, LoadDataPaths(folder))
    return config


SMALL = {"kind": "mlp", "hidden_sizes": [8]}


def train(
    folder,
    source,
    export_as="default",
    save_options=None,
    *,
    test_fraction=0.3,
    model=SMALL,
    per="dataset",
    **options,
):
    """Train a small model in one epoch on *source*, and return its artifact directory.

    *export_as* is the recorder of save-model, *save_options* are its other params, *per* is that of the
    normalization, and *options* are those of fit.
    """
    directory, prepared = folder / "artifacts", folder / "prepared"
    fractions = {"valid_fraction": 0.3, "test_fraction": test_fraction}
    loaded = prepare(prepared, source, **fractions, normalization={"per": per})
    built = BuildLearnerConfig.model_validate({"model": model})
    trained = FitConfig.model_validate(
        {"num_epochs": 1, "batch_size": 7, "num_workers": 0, "device": "cpu", **options}
    )
    saved = SaveModelConfig.model_validate(
        {"recorder": export_as, "exports": ["safetensors"], **(save_options or {})}
    )
    build_learner(built, BuildLearnerPaths(prepared / "dataset.json", directory / "learner"))
    plots = directory / "plots"
    fit(
        trained,
        FitPaths(
            directory,
            directory / "learner",
            prepared,
            *(directory / name for name in ("checkpoint", "train", "valid", "metrics.json")),
            plots,
            plots / "iterations",
            plots / "confusion.tsv",
            folder / "runs",
        ),
        FitContext(allowed=list_factories(source)),
    )
    sections = {"load_data": loaded, "build_learner": built, "fit": trained, "save_model": saved}
    resolved = {name: section.model_dump(mode="json") for name, section in sections.items()}
    (directory / "config.json").write_text(to_json(resolved))
    file = directory / f"model{saved.recorder.suffix}"
    paths = (directory / "checkpoint", directory / "config.json", file, directory / "exports")
    save_model(saved, SaveModelPaths(*paths, directory / "learner", prepared, directory / "test/split"))
    return directory
