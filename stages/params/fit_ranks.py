"""The part of the ranks other than rank 0 in the stage fit."""

from stages import data, learner
from stages.contracts.errors import RunInterruptedError
from stages.contracts.seeds import derive_seed
from stages.params.fit_context import FitContext, FitPaths
from stages.params.fit_params import FitConfig


def follow_main(config: FitConfig, paths: FitPaths, context: FitContext) -> None:
    """Train together with rank 0, which calls `fit` and owns the run store, until it has a result.

    Raises `RunInterruptedError` if the ranks were asked to stop, after rank 0 has saved the run, because
    torchrun kills the ranks of a host 30 seconds after one of them has exited.
    """
    config = config.model_copy(update={"loggers": ()})  # rank 0 logs
    while context.group.will_train():
        builder = context.configure(config, learner.LearnerBuilder(paths.runs)).checkpoint("auto")
        run = builder.build(*learner.LearnerSpec.read(paths.learner).build(config.seed))
        train, valid = config.build_loaders(data.read(paths.data, ["valid"]))
        run.fit(train, valid)
        if config.strategy == "fsdp":  # rank 0 cannot run the model without the other parts of it
            learner.confusion_cells(run, valid, derive_seed(config.seed, "confusion"))
        if run.interrupted:
            context.group.will_train()
            raise RunInterruptedError("stopped together with rank 0, which has saved the run")
