"""Commands and modules that must start fast import neither torch nor Prefect nor other slow packages.

A process runs the steps of a list in their order. What a step imports stays imported: if a module is missing
after a step, neither this step nor one before it has imported it. Each process that imports torch takes
seconds, so a list has as many steps as that permits.
"""

import json
import sys

import pytest

TERMINAL = {"plotext", "rich", "termios"}
HEAVY = {"torch", "prefect", "dvc"}
SHARDING = {"torch.distributed.fsdp", "torch.distributed.tensor", "sympy"}
"""Modules of sharded parameters, which take as long to import as half of torch, because they import sympy."""
UNUSED = {"prefect", "dvc", "sklearn", "scipy", "pandas", "pyarrow", "rich", "torch._dynamo", "torch.onnx"}
"""Modules that no stage of a run with the shipped params uses."""

TRAIN = """
import torch
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.models import Mlp
from stages.optim import Adam, build_optimizer, without_dynamo
from stages.records import BinFileRecorder
from stages.renderers import NoRenderer

data = TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
loader = DataLoaderBuilder(NormalizeBatcher(0.0, 1.0)).batch_size(2).build(data)
builder = LearnerBuilder("trained").num_epochs(1).with_file_checkpointer(BinFileRecorder())
model = Mlp((2,), 2)
builder.renderer(NoRenderer()).build(model, Adam(), 0.1).fit(loader, loader)
optimizer = build_optimizer(Adam(), [*model.parameters()])
with without_dynamo():
    optimizer.load_state_dict(optimizer.state_dict())
"""
WITHOUT_TORCH = [
    ("import stages.metrics.registry", "stages.metrics.registry", HEAVY | {"torchmetrics", "psutil"}),
    ("from stages.renderers import default_renderer as f; f()", "stages.renderers", HEAVY | TERMINAL),
    ("from stages.loggers import FileMetricLogger", "stages.loggers.log_files", HEAVY | {"tensorboard"}),
    ("import stages.records.tools.listing", "stages.records.tools.listing", HEAVY),
    ("import stages.runs.verification", "stages.runs.verification", HEAVY),
    ("import pipeline.commands.records", "pipeline.commands.records", HEAVY),
    ("import stages, stages.contracts, stages.learner", "stages.learner", HEAVY),
    ("import stages.fit, pipeline.project.params", "pipeline.project.params", HEAVY),
    ("import pipeline.engine.rank_launcher", "pipeline.engine.rank_launcher", HEAVY),
    ("learner stage create-artifact-dir", "stages.create_artifact_dir", HEAVY | (UNUSED - {"rich"})),
    ("learner check", "pipeline.commands.project", {"torch", "prefect"}),
    ("learner status", "pipeline.commands.project", {"torch", "prefect"}),
    ("learner compare", "pipeline.comparison", {"torch", "prefect"}),
]
WITH_TORCH = [
    (TRAIN, "stages.learner.loop", SHARDING | UNUSED),
    ("learner stage load-data", "stages.data.sources.built_in", UNUSED - {"dvc", "rich"}),
    ("learner stage build-learner", "stages.learner.builder", UNUSED - {"dvc", "rich"}),
]
SERVICE = [
    ("learner --help", "pipeline.commands.runs", HEAVY | {"numpy", "pydantic"}),
    ("import pipeline.flows.flow", "pipeline.flows.flow", {"torch", "plotext", "pygit2"}),
    ("import pipeline.flows.serving", "pipeline.flows.serving", {"torch"}),
]
STEPS = WITHOUT_TORCH + WITH_TORCH + SERVICE
"""Steps, each with a module that it imports and those that it must not import."""

PROGRAM = """
import json, sys

loaded = {}
for step in json.loads(sys.argv[1]):
    if step.startswith("learner "):
        from pipeline.__main__ import main

        sys.argv = step.split()
        try:
            main()
        except SystemExit as error:
            assert not error.code, step
    else:
        exec(step, {})
    loaded[step] = sorted(sys.modules)
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded(checked_out, tmp_path_factory):
    """Return each step with the modules that are imported after it."""
    project = checked_out(tmp_path_factory.mktemp("imports") / "project")
    found = {}
    for steps in (WITHOUT_TORCH, WITH_TORCH, SERVICE):
        printed = project.ok(sys.executable, "-c", PROGRAM, json.dumps([step for step, *_ in steps]))
        found |= json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("step", "imported", "excluded"),
    STEPS,
    ids=[step.strip().partition("\n")[0] for step, *_ in STEPS],
)
def test_step_does_not_import_slow_modules(step, imported, excluded, loaded):
    assert imported in loaded[step]
    assert not excluded & set(loaded[step])


def test_help_does_not_import_the_config_classes(loaded):
    """Importing the config classes and pydantic would take most of the time of `learner --help`."""
    ours = {name for name in loaded["learner --help"] if name.startswith(("pipeline", "stages"))}

    assert not {name for name in ours if name.endswith(("config", "params"))}
