"""Modules and commands that must start fast import neither torch nor Prefect nor DVC."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "module", ["stages", "stages.contracts", "stages.learner", "pipeline.params", "stages.fit"]
)
def test_importing_does_not_load_torch_prefect_or_dvc(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'prefect', 'dvc'}} & set(sys.modules)))"

    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [["--help"], ["check"], ["status"], ["compare"]])
def test_light_command_loads_neither_torch_nor_prefect(command, project):
    loaded = project.run(sys.executable, "-X", "importtime", "-m", "pipeline", *command).imported

    assert "pipeline.cli" in loaded
    assert not loaded & {"torch", "prefect"}


def test_first_stage_does_not_load_torch(project):
    log = project.run(sys.executable, "-X", "importtime", "-m", "pipeline", "stage", "create-artifact-dir")

    assert log.code == 0, log.err
    assert "stages.create_artifact_dir" in log.imported
    assert "torch" not in log.imported


def test_run_on_one_device_does_not_load_the_code_of_sharded_parameters(tmp_path):
    """It would take as long to import as half of torch, because it imports sympy."""
    program = f"""if True:
        import sys
        import torch
        from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
        from stages.learner import LearnerBuilder
        from stages.models import Mlp
        from stages.optim import Adam
        from stages.records import BinFileRecorder
        from stages.renderers import NoRenderer
        data = TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
        loader = DataLoaderBuilder(NormalizeBatcher(0.0, 1.0)).batch_size(2).build(data)
        builder = LearnerBuilder({str(tmp_path)!r}).num_epochs(1).with_file_checkpointer(BinFileRecorder())
        builder.renderer(NoRenderer()).build(Mlp((2,), 2), Adam(), 0.1).fit(loader, loader)
        print(sorted({{"torch.distributed.fsdp", "torch.distributed.tensor", "sympy"}} & set(sys.modules)))
    """

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert found.stdout.splitlines()[-1:] == ["[]"], found.stdout + found.stderr


def test_help_does_not_load_the_config_classes(project):
    """Importing the config classes and pydantic would take most of the time of `learner --help`."""
    loaded = project.run(sys.executable, "-X", "importtime", "-m", "pipeline", "--help").imported

    assert "pipeline.commands.runs" in loaded
    ours = {name for name in loaded if name.startswith(("pipeline", "stages"))}
    assert not {name for name in ours if name.endswith(("config", "params"))} | loaded & {"pydantic"}
