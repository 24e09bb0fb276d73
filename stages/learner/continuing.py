"""What a run starts from where it goes on from another one: that one's checkpoint, fitted to this learner.

What the other run alone could use does not come along: its identity, and its place in an epoch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.checkpoints import Checkpoint
from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.history import History
from stages.learner.history_record import history_tree
from stages.learner.state import State
from stages.optim import OptimizerConfig, Scheduler, Window, build_optimizer
from stages.records import LoadResult, Tree, load_burn_optimizer, load_into, read_item, record_of

Start = tuple[Any, OptimizerConfig, Scheduler]
"""What `Blueprint.build` gives."""
DRIVEN = {"lr", "initial_lr"}
"""Options that the schedule sets, so that those of a checkpoint are as good as new ones."""
SHAPING = ("amsgrad", "centered", "momentum")
"""Options for which an optimizer keeps more of each parameter than without."""
MADE_ANEW = {"epoch", "layout", "model", "optim", "scheduler", "training_state", "place", "files"}
SHOWN = 10
WEIGHTS_ONLY = "To take its weights alone, say weights_only: true in build_learner.checkpoint"


@dataclass(frozen=True)
class Past:
    """What is known of the epochs behind a record that has nothing beside it."""

    epoch: int
    """How many are done."""
    history: History
    """Their numbers, as far as there are logs of them."""
    seed: int
    """What the random state of the epochs to come is derived from, unless somebody names another."""


def continued(start: Start, checkpoint: Checkpoint, source: str) -> Checkpoint:
    """*checkpoint*, read from *source*, as one that the learner of *start* goes on from.

    Its state stays to the bit; options (betas, weight decay …), rate and schedule are those of *start*.
    Raises `CheckpointError` where model or optimizer are others.
    """
    state = _state(start)
    _check_fits(load_into(state.model, checkpoint.model, strict=False, layout="burn"), source, start)
    own = [_options(group) for group in state.optimizer.param_groups]
    try:
        state.restore(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}. {WEIGHTS_ONLY}") from error
    for group, options in zip(state.optimizer.param_groups, own, strict=True):
        new = [name for name in SHAPING if options.get(name) and not group.get(name)]
        if new:
            raise CheckpointError(
                f"{source}: its {start[1].kind} ran without {', '.join(new)}, and has not kept what that "
                f"needs. Leave it off. {WEIGHTS_ONLY}"
            )
        group.update(options)
    if getattr(start[2].schedule, "per", "batch") == "epoch":
        start[2].iteration = state.epoch  # it may have counted batches
    return state.checkpoint({key: each for key, each in _rest(checkpoint).items() if key not in MADE_ANEW})


def with_weights_of(start: Start, checkpoint: Checkpoint, source: str) -> Checkpoint:
    """The learner of *start* with the weights of *checkpoint*, its history and its count of epochs.

    Optimizer, schedule and accumulation begin anew. Raises `CheckpointError` where the model is another.
    """
    state, rest = _state(start), _rest(checkpoint)
    _check_fits(load_into(state.model, checkpoint.model, strict=False, layout="burn"), source, start)
    state.model.load_state_dict({**state.model.state_dict(), **rest["model"]})
    state.epoch = int(rest["epoch"])
    left = {key: each for key, each in rest.items() if key not in MADE_ANEW}
    return state.checkpoint({**left, **_nothing_begun()})


def with_record(
    start: Start,
    model_file: Path,
    optimizer_file: Path | None,
    *,
    past: Past,
    limit: int | None = None,
) -> tuple[Checkpoint, str]:
    """Return the learner of *start* with the weights in *model_file*, which Burn wrote, and a description.

    *optimizer_file* is used if it fits the optimizer. *limit* raises how many bytes of content the files may
    have. Raises `CheckpointError` if the model is another, `RecordError` if its record cannot be read.
    """
    state = _state(start)
    item = read_item(model_file, record_of(state.model), limit=limit)
    _check_fits(load_into(state.model, item, strict=False, source=str(model_file)), str(model_file), start)
    optimizer = _adopted(state, optimizer_file, item, limit=limit)
    state.epoch = past.epoch
    trainer = {"identity": None, "history": history_tree(past.history), **_nothing_begun(), "seed": past.seed}
    return state.checkpoint(trainer), f"its weights; {optimizer}; the schedule starts anew"


def _adopted(state: State, optimizer_file: Path | None, model_item: Tree, *, limit: int | None) -> str:
    """Resume the optimizer from *optimizer_file* if it fits; return a description of the outcome."""
    if optimizer_file is None:
        return "the optimizer starts anew"
    try:
        item = read_item(optimizer_file, limit=limit)
        lacking = load_burn_optimizer(
            state.optimizer, state.model, item, model_item, source=optimizer_file.name
        )
    except RecordError as error:
        return f"the optimizer starts anew ({error})"
    but = f", but for {_listed(lacking)}, which it does not have" if lacking else ""
    return f"the optimizer goes on from {optimizer_file.name}{but}"


def _state(start: Start) -> State:
    model, optimizer, scheduler = start
    return State(model, build_optimizer(optimizer, model.parameters()), scheduler)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params" and key not in DRIVEN}


def _rest(checkpoint: Checkpoint) -> dict[str, Any]:
    return {**checkpoint.trainer, "identity": None}


def _nothing_begun() -> dict[str, Any]:
    return {"window": Window(1).state_dict(), "guard": {"skipped": 0}}


def _check_fits(restored: LoadResult, source: str, start: Start) -> None:
    if restored.fits:
        return
    kinds = {
        "missing": restored.missing,
        "unexpected": restored.unexpected,
        "of another shape": restored.mismatched,
    }
    lines = [f"  {kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    raise CheckpointError(
        "\n".join(
            [
                f"{source} does not fit the {type(start[0]).__name__} of build_learner.model:",
                *lines,
                "make build_learner.model the one it was saved from",
            ]
        )
    )


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
