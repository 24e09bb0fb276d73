"""save-model: write the weights of one epoch as the model and as exports, and test the model."""

import json
from pathlib import Path

from stages import data, inference, learner, records, runs
from stages.contracts.errors import CheckpointError, StageError
from stages.contracts.printing import print_line
from stages.contracts.text import to_json
from stages.learner.from_params import write_test_results
from stages.params.save_model_params import SaveModelConfig, SaveModelPaths
from stages.system.files import copy_file, describe, write_text

VERSION = "6"


def save_model(config: SaveModelConfig, paths: SaveModelPaths) -> None:
    """Write the model of the last or the best epoch, its exports with their manifest, and its test metrics.

    Its weights are their average if the run has one, unless those of the training are asked for.

    Raises `CheckpointError` if the checkpoint of that epoch is missing or corrupt, `StageError` if
    config.json is that of another run, and `ParamsError` if the model has another suffix in dvc.yaml.
    """
    resolved = json.loads(paths.config.read_bytes())
    if resolved["save_model"] != config.model_dump(mode="json"):
        raise StageError(
            f"{paths.config} has another save_model section than this run, whose model it would describe. "
            "Run create-artifact-dir first"
        )
    config.check_suffix(paths.model)
    recorder = records.build_recorder(config.recorder)
    checkpointer = runs.FileCheckpointer(paths.checkpoint, records.DefaultRecorder())
    chosen = learner.use_exact_weights(_choose_checkpoint(config, checkpointer))
    if config.weights == "averaged":
        chosen = learner.use_average(chosen)
    recorder.record(_with_types(chosen.model, recorder, paths.learner), paths.model)
    paths.exports.mkdir(parents=True, exist_ok=True)
    if config.note:
        print_line(config.note)
    if paths.data is not None:
        copy_file(paths.data / data.DATASET_FILE, paths.exports / data.DATASET_FILE)  # for load_model
    write_test_results(resolved, recorder, paths)
    files = inference.write_exports(config, chosen, resolved, paths)
    content = {"epoch": chosen.trainer["epoch"], "files": {file.name: describe(file) for file in files}}
    write_text(paths.exports / inference.MANIFEST, to_json(content) + "\n")


def _choose_checkpoint(config: SaveModelConfig, checkpointer: "runs.FileCheckpointer") -> "runs.Checkpoint":
    """Return the model and the trainer record of the last or the best epoch; nothing else is read."""
    saved = checkpointer.list_saved()
    if not saved:
        raise CheckpointError(f"{checkpointer.directory} has no checkpoint. Run fit first")
    epoch, rule = saved[-1], config.best_rule
    if config.epoch == "best":
        last = checkpointer.restore(epoch, parts=())
        epoch = learner.best_epoch(last, rule.metric, rule.split, rule.direction)
    return checkpointer.restore(epoch, parts=["model"])


def _with_types(
    item: "records.Tree", recorder: "records.FileRecorder", directory: Path | None
) -> "records.Tree":
    """Return *item*, the record of a model, with the types that a file without names needs.

    A checkpoint in a format with names does not store them, so the model in *directory* is built for them.
    """
    if recorder.has_names:
        return item
    if directory is None:
        raise StageError(
            "save_model.recorder: bincode needs the learner. Add '${paths.learner}' to the deps of "
            "save-model in dvc.yaml"
        )
    model, _, _ = learner.LearnerSpec.read(directory).build(seed=0)
    records.load_into(model, item, source="the checkpoint")
    return records.record_of(model)
