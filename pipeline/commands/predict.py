"""The command ``learner predict``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import report_unwritable
from stages.contracts.printing import print_line

if TYPE_CHECKING:
    from stages.inference import Predictions

BATCHES_OF_A_BLOCK = 16
"""Batches whose samples are in memory at the same time."""


def predict(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="[REV] INPUT...",
            help="Folders of images, images, tables, files of texts, .npy or .npz files. A first argument "
            "that is not a file is a revision or an experiment, whose model is used.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .jsonl or .parquet.")],
    model: Annotated[Path, typer.Option(help="Artifact directory, or the file of a model in it.")] = Path(
        "artifacts"
    ),
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in a batch.", show_default="that of the training")
    ] = None,
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:1, mps.")] = "auto",
) -> None:
    """Write the predictions of a trained model for new inputs, which may be larger than the memory.

    Each row has the name of the input, its class and the probability of each class, or the predicted values.

    Example: learner predict images/ --out predictions.csv
    """
    from stages.inference import write_predictions

    revision = inputs[0] if len(inputs) > 1 and not Path(inputs[0]).exists() else None
    paths = [Path(name) for name in inputs[revision is not None :]]
    with _artifacts(revision, model) as place, report_unwritable(out):
        count = write_predictions(out, _predict(place, paths, batch_size, device))
    print_line(f"wrote {out}: {count} {'prediction' if count == 1 else 'predictions'}")


@contextmanager
def _artifacts(revision: str | None, model: Path) -> Iterator[Path]:
    """Yield the path of the model: *model*, or a copy of that of *revision*, an experiment or a commit."""
    if revision is None:
        yield model
        return
    from pipeline.project.revisions.names import resolve
    from pipeline.project.revisions.revision import Revision
    from stages.data.storage import DATASET_FILE
    from stages.inference.trained_model import CONFIG_FILE, EXPORTS_FOLDER, LEARNER_FOLDER
    from stages.runs.file_names import SPEC_FILE

    source = Revision(resolve(revision))
    paths = source.paths
    with TemporaryDirectory() as folder:
        target = Path(folder)
        source.copy(paths["config"], target / CONFIG_FILE)
        source.copy(paths["learner"] / SPEC_FILE, target / LEARNER_FOLDER / SPEC_FILE)
        source.copy(paths["dataset"], target / EXPORTS_FOLDER / DATASET_FILE)
        source.copy(paths["model"], target / paths["model"].name)
        yield target / paths["model"].name


def _predict(
    place: Path, paths: Sequence[Path], batch_size: int | None, device: str
) -> "Iterator[tuple[Sequence[str], Predictions]]":
    """Yield the names and the predictions of the samples in *paths*, block by block."""
    from rich.console import Console
    from rich.progress import track

    from stages.devices import apply_compute_settings
    from stages.inference import load_model, read_config, read_inputs
    from stages.learner import from_params

    config = read_config(place)
    from_params.prepare_process(config.fit)
    model = load_model(place, device=device, allowed=_list_project_code())
    rows = (batch_size or config.fit.batch_size) * BATCHES_OF_A_BLOCK
    blocks = read_inputs(paths, model.info, config.load_data["source"], rows)
    console = Console(stderr=True)
    with apply_compute_settings(from_params.compute_settings(config.fit), model.device):
        for block in track(blocks, "predicting", console=console, disable=not console.is_terminal):
            yield block.names, model.predict(block.samples, batch_size)


def _list_project_code() -> set[str]:
    """Return the import paths in the params.yaml of the current project, whose code a command may run."""
    from pipeline.project.check import list_values
    from pipeline.project.params import PARAMS, read_params

    if not PARAMS.exists():
        return set()
    params = read_params()
    return list_values(params.build_learner, params.fit)
