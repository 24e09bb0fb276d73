"""The command ``learner lr-find``."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import report_unwritable
from stages.contracts.errors import StageError
from stages.contracts.printing import print_line

if TYPE_CHECKING:
    from pipeline.project.params import Params
    from stages import learner

CHART_SIZE = (80, 16)
"""Columns and rows."""


def lr_find(
    lowest: Annotated[float, typer.Option("--min", help="First learning rate.")] = 1e-7,
    highest: Annotated[float, typer.Option("--max", help="Last learning rate.")] = 10.0,
    steps: Annotated[int, typer.Option(help="Number of batches.")] = 100,
    output: Annotated[Path, typer.Option(help="File for the curve, as tab-separated values.")] = Path(
        "artifacts/lr-find.tsv"
    ),
) -> None:
    """Suggest a learning rate from the loss while the rate grows from batch to batch.

    Train the model that build-learner wrote on the data that load-data wrote; change no output of a stage.
    Smith, 2017.

    Example: learner lr-find --min 1e-6 --max 1 --steps 200
    """
    from pipeline.project.params import read_params
    from pipeline.project.paths import read_paths
    from stages.contracts.text import number
    from stages.system.files import write_text

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


def measure_curve(
    params: "Params", paths: Mapping[str, Path], rates: tuple[float, float], steps: int
) -> "learner.LearningRateCurve":
    """Return the loss of *steps* batches of the project by rates that grow from the first of *rates*."""
    from pipeline.project.check import read_spec
    from stages import data, learner

    fit = params.fit
    fit.prepare_process()
    model, optimizer, _ = read_spec(paths["learner"], params).build(params.build_learner.seed)
    train, _ = fit.build_loaders(data.read(paths["data"]))
    with TemporaryDirectory() as folder:
        builder = learner.LearnerBuilder(folder).devices(fit.list_devices()[:1])
        builder.seed(fit.seed).precision(fit.precision).num_threads(fit.num_threads)
        if fit.portable:
            builder.portable()
        return learner.find_learning_rate(builder, model, optimizer, train, rates=rates, steps=steps)


def _draw(curve: "learner.LearningRateCurve") -> None:
    from rich.console import Console

    from stages.contracts.history import Split
    from stages.renderers.chart import draw_chart

    points = {Split.TRAIN: list(enumerate(curve.running_mean))}
    Console().print(draw_chart(points, *CHART_SIZE))
