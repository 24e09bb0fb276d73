"""The shipped params.yaml gives the recorded hashes on another CPU too."""

import pytest

from stages.devices.portability import find_obstacle

pytestmark = pytest.mark.skipif(find_obstacle() is not None, reason=f"not portable: {find_obstacle()}")
OTHER_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "AVX2"}
"""Variables with which torch's libraries compute as on an older CPU."""


@pytest.mark.long  # devices/test_portability.py compares the bits of a run on another CPU
def test_run_on_another_cpu_leaves_the_same_lock(finished, project):
    assert project.call("run", **OTHER_CPU).code == 0

    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")


@pytest.mark.long
def test_run_that_is_not_portable_leaves_another_model_on_another_cpu(finished, project):
    project.edit("params.yaml", "portable: true", "portable: false")
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 1")

    assert project.call("run", **OTHER_CPU).code == 0

    model = "artifacts/checkpoint/model-1.mpk.gz"
    assert project.files(model) != finished.files(model)
