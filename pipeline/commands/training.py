"""The commands around training: data, lr-find, evaluate, predict, publish and summary."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from os.path import relpath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import argument, option, report_unwritable
from pipeline.commands.results import LearningRate, MetricValues, SampleFile, Summary, SummaryRow, Written
from pipeline.project.paths import read_paths
from stages.contracts.errors import DataError, ParamsError, StageError
from stages.contracts.history import Split
from stages.contracts.printing import print_line, print_text
from stages.contracts.text import number, to_json
from stages.system.files import describe, open_atomic, read_json, write_text

if TYPE_CHECKING:
    from pipeline.project.params import Params
    from stages import data as datasets
    from stages import learner
    from stages.contracts.config import Use
    from stages.inference import Predictions

SPLITS = ("train", "valid", "test")
MODEL_FILE = "model.json"
"""The file beside the logs of an evaluation with the path, the size and the hash of its model."""
IMAGE_FILE = Path("samples.png")
EPOCHS_OF_AUGMENTATION = (1, 2, 3, 4)
CHART_SIZE = (80, 16)
"""Columns and rows."""
BATCHES_OF_A_BLOCK = 16
"""Batches whose samples are in memory at the same time."""


def evaluate(
    model: Annotated[Path, option("Record that save-model wrote.")] = Path("artifacts/model.mpk.gz"),
    source: Annotated[
        str, option("Data: train, valid, test, digits, idx:FOLDER, npz:FILE, or an import path.")
    ] = "valid",
) -> MetricValues:
    """Compute the metrics of a saved model on a data set.

    Print them, and write their logs to artifacts/test/. `learner summary` shows them until the model changes.

    Example: learner evaluate --source npz:test.npz
    """
    from pipeline.project.check import read_spec
    from pipeline.project.params import read_params
    from stages import data, inference, learner, records
    from stages.learner import from_params
    from stages.learner.evaluation import find_tag

    params, paths = read_params(), read_paths()
    from_params.prepare_process(params.fit)
    spec = read_spec(paths["learner"], params)
    info = data.read_info(paths["dataset"])
    built, _, _ = spec.build(params.build_learner.seed)
    records.load_into(built, records.read_item(model), source=str(model))
    loader = from_params.build_test_loader(params.fit, _dataset(paths["data"], source), info)
    if source == "valid":
        loader.set_epoch(inference.read_epoch(model))  # the random views that fit measured
    builder = learner.EvaluatorBuilder(paths["artifacts"])
    builder.metrics(*from_params.build_output_metrics(params.fit))
    evaluator = from_params.configure_evaluator(params.fit, builder).build(built)
    name = source.replace("/", "-").replace(":", "-").strip(".")
    values = evaluator.eval(name, loader)
    manifest = {relpath(model, paths["artifacts"]): describe(model)}
    write_text(paths["artifacts"] / "test" / find_tag(name) / MODEL_FILE, to_json(manifest) + "\n")
    return MetricValues(source, values)


def _dataset(directory: Path, source: str) -> "datasets.Dataset":
    """Return the data that *source*, the value of ``--source``, names.

    Of a source with splits other than the prepared data, only the test split is used, or else the valid
    split. Raises `ParamsError` for any other text, and for a split that is missing, and `DataError` for a
    source that cannot be read, or numbers classes or features otherwise than the prepared data.
    """
    from stages import data

    info = data.read_info(directory / data.DATASET_FILE)
    if source in SPLITS:
        if source not in info.counts:
            raise ParamsError(
                f"--source {source}: the data has no {source} split. Use one of {', '.join(info.counts)}, or "
                f"set load_data.{source}_fraction"
            )
        return data.read_split(directory, source, info, allowed=_list_project_code())
    parsed = parse_source(source)
    try:
        loaded = data.load_source(parsed)
    except DataError as error:
        message = str(error).removeprefix("load_data.source.path: ")
        raise DataError(f"--source {source}: {message}") from error
    facts = loaded.train.facts if isinstance(loaded, data.Splits) else loaded.facts
    data.check_numbering(facts, vars(info), f"--source {source}")
    return data.dataset(list(data.split_columns(loaded).values())[-1])


def parse_source(text: str) -> "datasets.Idx | datasets.Npz | datasets.Digits | Use":
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


def data(
    *,
    split: Annotated[str, option("Split to show: train, valid or test.")] = "train",
    count: Annotated[int, option("Samples to show, from the first one on.", min=1, max=1000)] = 8,
    epoch: Annotated[
        list[int], option("Epoch to show; repeatable.", "1 to 4 with augmentation, else 1", min=1)
    ] = [],  # noqa: B006  never changed
    output: Annotated[
        Path | None, option("File to write.", f"{IMAGE_FILE} for images; text is printed", metavar="FILE")
    ] = None,
) -> SampleFile:
    """Show samples as the model is trained on them, after augmentation.

    Images become a PNG file with a row for each sample and a column for each epoch; other inputs become a
    table of text.

    Example: learner data --count 4 --epoch 1 --epoch 2 --output samples.png
    """
    from pipeline.project.inputs import list_values
    from pipeline.project.params import read_params
    from stages.data import read
    from stages.data.sample_sheet import read_samples
    from stages.learner.from_params import build_loader

    params = read_params()
    fit, prepared = params.fit, read(read_paths()["data"], (split,), allowed=list_values(params.load_data))
    if split not in prepared.info.counts:
        raise ParamsError(
            f"--split {split!r}: the data has only {', '.join(prepared.info.counts)}. Use one of them"
        )
    epochs = epoch or (EPOCHS_OF_AUGMENTATION if fit.augment and split == "train" else (1,))
    sheet = read_samples(build_loader(fit, prepared, split), epochs, count)
    content = sheet.to_png() if sheet.has_images else sheet.to_text().encode()
    path = output or (IMAGE_FILE if sheet.has_images else None)
    result = SampleFile(None if path is None else str(path), split, epochs, len(sheet.targets))
    if path is None:
        print_text(content.decode(), end="")
        return result
    with report_unwritable(path), open_atomic(path) as file:
        file.write(content)
    shown = f"{'epoch' if len(epochs) == 1 else 'epochs'} {', '.join(map(str, epochs))}"
    print_line(f"wrote {path}: {len(sheet.targets)} samples of {split} in {shown}")
    return result


def lr_find(
    lowest: Annotated[float, typer.Option("--min", help="First learning rate.")] = 1e-7,
    highest: Annotated[float, typer.Option("--max", help="Last learning rate.")] = 10.0,
    steps: Annotated[int, option("Number of batches.", min=10)] = 100,
    output: Annotated[Path, option("File for the curve, as tab-separated values.")] = Path(
        "artifacts/lr-find.tsv"
    ),
) -> LearningRate:
    """Suggest a learning rate from the loss while the rate grows from batch to batch.

    Train the model that build-learner wrote on the data that load-data wrote; change no output of a stage.
    Smith, 2017.

    Example: learner lr-find --min 1e-6 --max 1 --steps 200
    """
    from pipeline.project.params import read_params

    if not 0 < lowest < highest:
        raise ParamsError(f"--min must be above 0 and below --max; found {lowest:g} and {highest:g}")
    with report_unwritable(output):
        curve = measure_curve(read_params(), read_paths(), (lowest, highest), steps)
        rows = zip(curve.rates, curve.losses, curve.running_mean, strict=True)
        lines = ["learning_rate\tloss\tsmoothed", *("\t".join(map(number, row)) for row in rows)]
        write_text(output, "\n".join(lines) + "\n")
    _draw(curve)
    print_line(f"{len(curve.rates)} of {steps} rates before the loss diverges, in {output}")
    if curve.suggestion is None:
        raise StageError("the loss falls at no rate. Pass other values of --min and --max, or more --steps")
    print_line(f"suggested learning rate: {curve.suggestion:.1e}")
    print_line("Set build_learner.optimizer.learning_rate in params.yaml, or run with -S")
    return LearningRate(curve.suggestion, str(output))


def measure_curve(
    params: "Params", paths: Mapping[str, Path], rates: tuple[float, float], steps: int
) -> "learner.LearningRateCurve":
    """Return the loss of *steps* batches of the project by rates that grow from the first of *rates*."""
    from pipeline.project.check import read_spec
    from pipeline.project.inputs import list_values
    from stages import data, learner
    from stages.learner import from_params

    fit = params.fit
    from_params.prepare_process(fit)
    model, optimizer, _ = read_spec(paths["learner"], params).build(params.build_learner.seed)
    train, _ = from_params.build_loaders(fit, data.read(paths["data"], allowed=list_values(params.load_data)))
    with TemporaryDirectory() as folder:
        builder = learner.LearnerBuilder(folder).devices(from_params.list_devices(fit)[:1])
        builder.seed(fit.seed).precision(fit.precision).num_threads(fit.num_threads)
        if fit.portable:
            builder.portable()
        return learner.find_learning_rate(builder, model, optimizer, train, rates=rates, steps=steps)


def _draw(curve: "learner.LearningRateCurve") -> None:
    from rich.console import Console

    from stages.renderers.chart import draw_chart

    points = {Split.TRAIN: list(enumerate(curve.running_mean))}
    Console().print(draw_chart(points, *CHART_SIZE))


def summary(
    directory: Annotated[
        Path, argument("Artifact directory, with folders train/ and valid/, written by fit or by Burn.")
    ] = Path("artifacts"),
) -> Summary:
    """Print the summary table of a run from its log files.

    Example: learner summary artifacts --json
    """
    from stages.learner.summary import summary_rows, summary_text
    from stages.loggers.log_files import count_epochs, read_history, read_tests

    tests = {tag: test for tag, test in read_tests(directory).items() if _is_of_model(directory, tag)}
    history, epochs = read_history(directory), count_epochs(directory)
    if not len(history) and not tests:
        raise StageError(
            f"{directory} has no logs: found no train/epoch-1/*.log in it. Pass an artifact directory"
        )
    print_text(summary_text(history, tests=tests, epochs=epochs), end="")
    return Summary(epochs, [SummaryRow(**vars(row)) for row in summary_rows(history, tests)])


def _is_of_model(directory: Path, tag: str) -> bool:
    """Return False if `evaluate` has measured a file for *tag* that is not in *directory* any more."""
    from stages.runs.manifest import check_manifest, find_damage

    path = directory / "test" / tag / MODEL_FILE
    if not path.exists():  # of save-model, or of an evaluator in Python
        return True
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        return not find_damage(directory, check_manifest(read_json(path)))
    return False


def predict(
    *,
    inputs: Annotated[
        list[str],
        argument(
            "Folders of images, images, tables, files of texts, .npy or .npz files. A first argument "
            "that is not a file is a revision or an experiment, whose model is used.",
            metavar="[REV] INPUT...",
        ),
    ],
    out: Annotated[Path, option("File to write: .csv, .jsonl or .parquet.")],
    model: Annotated[Path, option("Artifact directory, or the file of a model in it.")] = Path("artifacts"),
    batch_size: Annotated[int | None, option("Samples in a batch.", "that of the training", min=1)] = None,
    device: Annotated[str, option("Device: auto, cpu, cuda, cuda:1, mps.")] = "auto",
) -> Written:
    """Write the predictions of a trained model for new inputs, which may be larger than the memory.

    Each row has the name of the input, its class and the probability of each class, or the predicted values.

    Example: learner predict images/ --out predictions.csv
    """
    from stages.inference import write_predictions

    revision = inputs[0] if len(inputs) > 1 and not Path(inputs[0]).exists() else None
    paths = [Path(name) for name in inputs[revision is not None :]]
    with _find_model(revision, model) as place, report_unwritable(out):
        count = write_predictions(out, _predict(place, paths, batch_size, device))
    print_line(f"wrote {out}: {count} {'prediction' if count == 1 else 'predictions'}")
    return Written([str(out)], count)


def _find_model(
    revision: str | None, model: Path, *, folders: Sequence[str] = ()
) -> AbstractContextManager[Path]:
    """Return a context with the path of *model*, or if a *revision* is named, of a copy of its model."""
    if revision is None:
        return nullcontext(model)
    from pipeline.project.revisions.model import copy_model

    return copy_model(revision, folders=folders)


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
    from pipeline.project.inputs import list_values
    from pipeline.project.params import PARAMS, read_params

    if not PARAMS.exists():
        return set()
    params = read_params()
    return list_values(params.load_data, params.build_learner, params.fit)


def publish(
    folder: Annotated[Path, argument("Folder to write.")],
    *,
    rev: Annotated[str | None, option("Revision or experiment to publish.", "the workspace")] = None,
) -> Written:
    """Write a trained model to a folder that the Hugging Face hub and MLflow's registry accept.

    Copy the exports that save-model has written: model_card and safetensors, and onnx for MLflow. Files that
    this command has not written are never replaced.

    Example: learner publish published --rev exp-name
    """
    from stages.inference import publish_model

    artifacts = read_paths()["artifacts"]
    if folder.resolve().is_relative_to(artifacts.resolve()):
        raise ParamsError(f"{folder} is in {artifacts}, whose files DVC tracks. Name another folder")
    with _find_model(rev, artifacts / "model", folders=["exports"]) as model:
        files = publish_model(model.parent, folder)
    has_mlflow = any(file.name == "MLmodel" for file in files)
    others = "and MLflow" if has_mlflow else "only; MLflow needs save_model.exports: [onnx]"
    print_line(f"wrote {folder}: {len(files)} files for the Hugging Face hub {others}")
    return Written([str(file) for file in files])
