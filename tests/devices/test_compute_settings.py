"""Threads, precision and determinism apply while a run trains, and the previous values are restored."""

import gc
import operator
import weakref

import pytest
import torch
from torch import nn

from stages.contracts.errors import StageError
from stages.devices import ComputeSettings, apply_compute_settings
from stages.devices.compute_settings import list_devices
from stages.devices.memory import report_device_errors
from stages.learner import LearnerBuilder
from stages.models import RegressionStep
from stages.renderers import NoRenderer

CPU = torch.device("cpu")


def settings_of_torch():
    backends = torch.backends
    parts = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
    return (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
        backends.cudnn.benchmark,
        [each.fp32_precision for each in parts],
        older_settings(),
    )


def older_settings():
    """Return the precisions by the older API, which raises an error if the newer one has other values."""
    backends = torch.backends
    return (
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )


@pytest.mark.parametrize(
    "settings",
    [
        ComputeSettings(),
        ComputeSettings(precision="tf32"),
        ComputeSettings(deterministic=True, precision="tf32", num_threads=3),
        ComputeSettings(precision="bf16"),
    ],
)
def test_previous_settings_are_restored_also_after_an_error(settings):
    before = settings_of_torch()

    with pytest.raises(KeyError), apply_compute_settings(settings, CPU):
        raise KeyError

    assert settings_of_torch() == before


@pytest.mark.parametrize(("precision", "expected"), [("f32", "ieee"), ("bf16", "ieee"), ("tf32", "tf32")])
def test_float32_is_ieee_in_products_and_convolutions_unless_tf32_is_chosen(precision, expected):
    with apply_compute_settings(ComputeSettings(precision=precision), CPU):
        assert torch.backends.cuda.matmul.fp32_precision == expected
        assert torch.backends.cudnn.conv.fp32_precision == expected


@pytest.mark.parametrize(("precision", "allowed"), [("f32", False), ("bf16", False), ("tf32", True)])
def test_older_reads_of_the_precision_agree_also_within_flags_of_cudnn(precision, allowed):
    expected = allowed, allowed, "high" if allowed else "highest"

    with apply_compute_settings(ComputeSettings(precision=precision), CPU):
        assert older_settings() == expected
        with torch.backends.cudnn.flags():
            older_settings()
        assert older_settings() == expected


@pytest.mark.parametrize("name", ["cuda.matmul", "cudnn.conv", "mkldnn.matmul"])
@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_precision_that_the_older_api_cannot_read_is_no_obstacle(name, before):
    backend = operator.attrgetter(name)(torch.backends)
    precisions = torch.get_float32_matmul_precision(), backend.fp32_precision
    torch.set_float32_matmul_precision(before)
    backend.fp32_precision = "ieee"
    try:
        with apply_compute_settings(ComputeSettings(precision="tf32"), CPU):
            older_settings()
        assert backend.fp32_precision == "ieee"
    finally:
        torch.set_float32_matmul_precision(precisions[0])
        backend.fp32_precision = precisions[1]


def test_deterministic_setting_refuses_operations_without_a_deterministic_form():
    with apply_compute_settings(ComputeSettings(deterministic=True), CPU):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory


class Line(RegressionStep, nn.Linear):
    pass


def test_a_run_trains_with_its_threads_and_restores_those_of_the_caller(tmp_path):
    model, loader, used = Line(1, 1), [(torch.ones(2, 1), torch.ones(2, 1))], []
    model.register_forward_hook(lambda *_: used.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).num_threads(before + 1).renderer(NoRenderer())

    builder.build(model, torch.optim.SGD(model.parameters(), 0.1)).fit(loader, loader)

    assert set(used) == {before + 1}
    assert torch.get_num_threads() == before


EXHAUSTED = [
    torch.OutOfMemoryError("Tried to allocate 3.00 TiB. GPU 0 has a total capacity of 80 GiB"),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]
FAILED = [
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]


def describe_position():
    return "batch 64 of epoch 2 (train)"


@pytest.mark.parametrize("error", EXHAUSTED, ids=str)
def test_exhausted_memory_is_one_message_with_three_remedies(error):
    with pytest.raises(StageError) as caught, report_device_errors(CPU, describe_position):
        raise error

    message = str(caught.value)
    assert f"is exhausted: {str(error)[:25]}" in message
    assert all(word in message for word in ("batch_size", "gradient_checkpointing", "precision"))
    assert "\n" not in message


@pytest.mark.parametrize("error", FAILED, ids=str)
def test_failure_of_the_device_is_one_message_with_the_position_and_the_likely_cause(error):
    with pytest.raises(StageError) as caught, report_device_errors(CPU, describe_position):
        raise error

    message = str(caught.value)
    assert message.startswith("cpu failed after batch 64 of epoch 2 (train)")
    assert str(error).splitlines()[0] in message
    assert all(word in message for word in ("label", "index", "device: cpu"))
    assert "\n" not in message


def test_other_errors_are_not_changed():
    with pytest.raises(RuntimeError, match="^mat1 and mat2"), report_device_errors(CPU, describe_position):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")


@pytest.mark.parametrize(("error", "is_freed"), [(EXHAUSTED[0], True), (FAILED[0], False)], ids=str)
def test_tensors_of_the_failed_step_are_freed_unless_that_would_use_a_failed_device(error, is_freed):
    freed = []

    def step():
        tensor = torch.zeros(1)
        weakref.finalize(tensor, freed.append, True)
        raise type(error)(str(error))

    def report():
        with report_device_errors(CPU, describe_position):
            step()

    with pytest.raises(StageError) as caught:
        report()
    if not is_freed:
        del caught
    gc.collect()

    assert bool(freed) == is_freed


def test_the_cpu_is_always_listed_last():
    assert list_devices()[-1] == "cpu"
