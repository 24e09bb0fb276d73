"""The five stages by name: which function each one is, and what it is called with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.params import Params, read_params
from pipeline.paths import paths_of, read_paths
from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.contracts.errors import ParamsError, closest
from stages.contracts.events import Renderer


@dataclass(frozen=True)
class Stage:
    """One stage of dvc.yaml."""

    version: str
    call: Callable[[Params, dict[str, Path]], None]


def _create_artifact_dir(params: Params, paths: dict[str, Path]) -> None:
    create_artifact_dir.create_artifact_dir(
        params.create_artifact_dir,
        paths_of(create_artifact_dir.Paths, paths, owned=paths),
        params.model_dump(mode="json"),
    )


def _load_data(params: Params, paths: dict[str, Path]) -> None:
    load_data.load_data(params.load_data, paths_of(load_data.Paths, paths))


def _build_learner(params: Params, paths: dict[str, Path]) -> None:
    build_learner.build_learner(params.build_learner, paths_of(build_learner.Paths, paths))


def _fit(params: Params, paths: dict[str, Path], renderer: Renderer | None = None) -> None:
    fit.fit(params.fit, paths_of(fit.Paths, paths), renderer)


def _save_model(params: Params, paths: dict[str, Path]) -> None:
    save_model.save_model(params.save_model, paths_of(save_model.Paths, paths))


STAGES = {
    "create-artifact-dir": Stage(create_artifact_dir.VERSION, _create_artifact_dir),
    "load-data": Stage(load_data.VERSION, _load_data),
    "build-learner": Stage(build_learner.VERSION, _build_learner),
    "fit": Stage(fit.VERSION, _fit),
    "save-model": Stage(save_model.VERSION, _save_model),
}


def run_body(name: str, renderer: Renderer | None = None) -> None:
    """Do what stage *name* does, with the params.yaml and dvc.yaml of this folder.

    *renderer* shows the stage that trains. Raises `ParamsError` for a name that no stage has, and whatever
    the stage raises.
    """
    if name not in STAGES:
        raise ParamsError(f"no stage is called {name!r}: {', '.join(STAGES)}.{closest(name, STAGES)}")
    call = STAGES[name].call if renderer is None or name != "fit" else partial(_fit, renderer=renderer)
    call(read_params(), read_paths())
