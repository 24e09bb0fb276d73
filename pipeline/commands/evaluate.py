"""The command ``learner evaluate``."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[Path, typer.Option(help="Record that save-model wrote.")] = Path(
        "artifacts/model.mpk.gz"
    ),
    source: Annotated[
        str, typer.Option(help="Data: train, valid, digits, idx:FOLDER, npz:FILE, or an import path.")
    ] = "valid",
) -> None:
    """Compute the metrics of a saved model on a data set.

    Print them, and write their logs to artifacts/test/.

    Example: learner evaluate --source npz:test.npz
    """
    from pipeline.evaluate import evaluate as evaluate_model
    from pipeline.params import read_params
    from pipeline.project import read_paths

    evaluate_model(read_params(), read_paths(), model, source)
