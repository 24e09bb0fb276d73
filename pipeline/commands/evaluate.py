"""The command ``learner evaluate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stages.contracts.errors import ParamsError

if TYPE_CHECKING:
    from pipeline.project.params import Params
    from stages import data
    from stages.contracts.config import Use

SPLITS = ("train", "valid", "test")


def evaluate(
    model: Annotated[Path, typer.Option(help="Record that save-model wrote.")] = Path(
        "artifacts/model.mpk.gz"
    ),
    source: Annotated[
        str, typer.Option(help="Data: train, valid, test, digits, idx:FOLDER, npz:FILE, or an import path.")
    ] = "valid",
) -> None:
    """Compute the metrics of a saved model on a data set.

    Print them, and write their logs to artifacts/test/.

    Example: learner evaluate --source npz:test.npz
    """
    from pipeline.project.params import read_params
    from pipeline.project.paths import read_paths

    evaluate_model(read_params(), read_paths(), model, source)


def evaluate_model(
    params: "Params", paths: Mapping[str, Path], model_path: Path, source: str
) -> dict[str, float]:
    """Compute, log, print and return the metrics in ``fit.metrics`` of the model at *model_path*.

    *source* is ``train``, ``valid`` or ``test`` for a split of the prepared data, ``digits``,
    ``idx:FOLDER``, ``npz:FILE``, or an import path. Of another source with splits, only the test split is
    used, or else the valid split. Raises `ParamsError` for any other text, and for a split that is missing.
    """
    from pipeline.project.check import read_spec
    from stages import data, learner, metrics, records

    params.fit.prepare_process()
    spec = read_spec(paths["learner"], params)
    info = data.read_info(paths["dataset"])
    model, _, _ = spec.build(params.build_learner.seed)
    records.load_into(model, records.read_item(model_path), source=str(model_path))
    loader = params.fit.build_test_loader(_dataset(paths["data"], source), info)
    builder = learner.EvaluatorBuilder(paths["artifacts"])
    builder.metrics(*[metrics.build_metric(each) for each in params.fit.metrics])
    evaluator = params.fit.configure_evaluator(builder).build(model)
    return evaluator.eval(source.replace("/", "-").replace(":", "-").strip("."), loader)


def _dataset(directory: Path, source: str) -> "data.TensorDataset | data.ImageFileDataset":
    from stages import data

    if source in SPLITS:
        found = data.read_info(directory / "dataset.json").counts
        if source not in found:
            raise ParamsError(
                f"--source {source}: the data has no {source} split. Use one of {', '.join(found)}, or set "
                f"load_data.{source}_fraction"
            )
        return data.read_split(directory, source, data.read_info(directory / "dataset.json").index)
    loaded = data.load_source(parse_source(source))
    if isinstance(loaded, data.Splits):
        loaded = list(loaded.by_name().values())[-1]
    return data.dataset(data.to_columns(loaded, source))


def parse_source(text: str) -> "data.Idx | data.Npz | data.Digits | Use":
    """Return the source that the option ``--source`` names. Raises `ParamsError` for any other text."""
    from stages import data
    from stages.contracts.config import Use

    kind, _, path = text.partition(":")
    match kind:
        case "digits":
            return data.Digits()
        case "idx" if path.strip():
            return data.Idx(kind="idx", path=path)
        case "npz" if path.strip():
            return data.Npz(kind="npz", path=path)
        case _ if path:
            return Use(kind=text)
    raise ParamsError(
        f"--source {text!r} names no data. Use train, valid, test, digits, idx:FOLDER, npz:FILE, or "
        "package.module:function"
    )
