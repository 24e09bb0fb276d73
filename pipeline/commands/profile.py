"""The command ``learner profile``."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pipeline.commands.options import report_unwritable
from stages.contracts.printing import print_text


def profile(
    steps: Annotated[int, typer.Option(help="Number of batches to measure.")] = 50,
    warm_up: Annotated[int, typer.Option(help="Number of batches before these.")] = 10,
    trace: Annotated[Path, typer.Option(help="File for the trace.")] = Path("artifacts/profile.json"),
) -> None:
    """Measure where the time of a training step goes.

    Train the model that build-learner wrote on the data that load-data wrote; change no output of a stage.
    Print the time of the parts of a step and of the slowest operators, and write a trace for Perfetto
    (ui.perfetto.dev) or chrome://tracing.

    Example: learner profile --steps 20 --trace step.json
    """
    from pipeline.check import read_spec
    from pipeline.params import read_params
    from pipeline.project import read_paths
    from stages import data, learner, renderers

    params, paths = read_params(), read_paths()
    params.fit.prepare_process()
    config = params.fit.model_copy(
        update={"num_epochs": 1, "step": "eager", "loggers": (), "early_stopping": None}
    )
    spec = read_spec(paths["learner"], params)
    train = config.build_loader(data.read(paths["data"]), "train")
    with report_unwritable(trace), TemporaryDirectory() as folder:
        builder = config.configure(learner.LearnerBuilder(folder)).renderer(renderers.NoRenderer())
        start = spec.build(params.build_learner.seed)
        found = learner.profile_steps(builder.build(*start), train, steps=steps, warm_up=warm_up, trace=trace)
    print_text(f"{found.operators}\n{found}\n{steps} steps; the trace is in {trace}")
