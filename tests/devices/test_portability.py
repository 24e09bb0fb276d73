"""A portable run computes the same bits whatever kernels torch would choose for the CPU."""

import os
import platform
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from pipeline.project.params import Params
from stages.contracts.errors import BuilderError
from stages.devices import ComputeSettings, apply_compute_settings
from stages.devices.compute_settings import VARIABLES, find_obstacle
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import Mlp
from stages.optim import AdaGrad, OptimizerUse, RmsProp

ROOT = Path(__file__).parents[2]
OTHER_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "AVX2"}
"""Variables with which torch's libraries compute as on an older CPU."""
PROGRAM = """
import hashlib, sys
import torch
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.devices import prepare_portable
from stages.optim import Adam
from stages.renderers import NoRenderer

class Net(ClassificationStep, torch.nn.Sequential):
    pass

is_portable = "portable" in sys.argv
if "late" in sys.argv:
    torch.ones(64, 64) @ torch.ones(64, 64)  # ATen and MKL choose their kernels here
elif is_portable:
    prepare_portable()
torch.manual_seed(1)
net = Net(
    torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3), torch.nn.GELU(),
    torch.nn.Flatten(), torch.nn.Linear(16 * 64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10),
)
batches = [(torch.randn(32, 1, 12, 12), torch.randint(10, (32,))) for _ in range(4)]
builder = LearnerBuilder(sys.argv[1]).metrics(LossMetric()).num_threads(1).num_epochs(2)
builder = builder.renderer(NoRenderer())
builder = builder.portable() if is_portable else builder
learner = builder.build(net, Adam(), 1e-3)
learner.fit(batches, batches)
print(hashlib.md5(b"".join(each.detach().numpy().tobytes() for each in net.parameters())).hexdigest())
"""

pytestmark = pytest.mark.skipif(
    find_obstacle() is not None, reason=f"no portable run here: {find_obstacle()}"
)


def run_program(folder, *arguments, **variables):
    """Run PROGRAM as on the CPU that *variables* imitate."""
    return run_process(PROGRAM, str(folder), *arguments, **variables)


def run_process(code, *arguments, **variables):
    """Run *code* in a process with *variables* instead of those of a portable run."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_portable_run_has_the_same_bits_on_another_cpu(tmp_path, monkeypatch, capsys):
    """The process of the tests is portable from its start."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "argv", ["program.py", str(tmp_path / "here"), "portable"])
    runpy.run_path(str(tmp_path / "program.py"))

    other = run_program(tmp_path / "other", "portable", **OTHER_CPU)

    assert capsys.readouterr().out == other.stdout != "", other.stderr


@pytest.mark.long
def test_usual_run_has_other_bits_on_another_cpu(tmp_path):
    """Otherwise the variables would imitate no other CPU."""
    here, other = (
        run_program(tmp_path / name, **variables).stdout
        for name, variables in (("here", {}), ("other", OTHER_CPU))
    )

    assert here != other


LATE = """
import torch
from stages.devices.compute_settings import check_kernels

torch.ones(64, 64) @ torch.ones(64, 64)  # ATEN and MKL choose their kernels here
check_kernels(torch.device("cpu"))
"""


def test_kernels_of_a_process_that_has_computed_are_refused():
    refused = run_process(LATE)

    assert refused.returncode == 1
    assert "this process has computed already. Call stages.devices.prepare_portable() at" in refused.stderr


@pytest.mark.long  # the test before
def test_portable_run_in_a_process_that_has_computed_is_refused(tmp_path):
    refused = run_program(tmp_path, "portable", "late")

    assert refused.returncode == 1
    assert "this process has computed already. Call stages.devices.prepare_portable() at" in refused.stderr
    assert "ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE" in refused.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda builder: builder, "portable needs num_threads"),
        (
            lambda builder: builder.num_threads(1).precision("bf16"),
            "portable needs precision f32, not 'bf16'",
        ),
        (lambda builder: builder.num_threads(1).compile(), "portable excludes compile"),
    ],
)
def test_settings_that_depend_on_the_machine_are_refused(tmp_path, change, message):
    builder = change(LearnerBuilder(tmp_path).metrics(LossMetric()).portable())
    model = Mlp((4,), 2)

    with pytest.raises(BuilderError, match=message):
        builder.build(model, torch.optim.Adam(model.parameters()), 1e-3)


@pytest.mark.parametrize(
    "optimizer",
    [RmsProp(), AdaGrad(), OptimizerUse(kind="nadam"), torch.optim.RMSprop([torch.nn.Parameter()])],
)
def test_optimizer_whose_square_roots_depend_on_the_cpu_is_refused(tmp_path, optimizer):
    builder = LearnerBuilder(tmp_path).metrics(LossMetric()).num_threads(1).portable()

    with pytest.raises(BuilderError, match="portable excludes the optimizer .* square roots differ"):
        builder.build(Mlp((4,), 2), optimizer, 1e-3)


def test_params_of_a_portable_run_with_such_an_optimizer_are_refused():
    rmsprop, portable = {"optimizer": {"kind": "rmsprop"}}, {"portable": True, "num_threads": 1}

    with pytest.raises(ValidationError, match="portable excludes the optimizer rmsprop"):
        Params.model_validate({"build_learner": rmsprop, "fit": portable})

    assert Params.model_validate({"build_learner": rmsprop, "fit": {"num_threads": 1}})


def test_machine_that_cannot_run_portably_logs_one_line_and_computes(monkeypatch, caplog):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    with apply_compute_settings(ComputeSettings(portable=True, num_threads=1), torch.device("cpu")):
        assert torch.backends.mkldnn.enabled

    [record] = caplog.records
    assert record.getMessage() == "portable has no effect, because the architecture is aarch64, not x86-64"


def test_settings_of_torch_are_restored_after_a_portable_run():
    before = torch.backends.mkldnn.enabled

    with apply_compute_settings(ComputeSettings(portable=True, num_threads=1), torch.device("cpu")):
        assert not torch.backends.mkldnn.enabled

    assert torch.backends.mkldnn.enabled == before
