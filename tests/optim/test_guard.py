"""The guard that keeps NaN and infinity out of the weights."""

import logging

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from stages.contracts.errors import CheckpointError, StageError
from stages.contracts.outputs import RegressionOutput, TrainOutput
from stages.optim import DeviceGuard, Guard, NonFinite, NonFiniteError, Stepper
from stages.optim.guard import MAX_RECORDED_STEPS, _all_finite, _finite_norms
from stages.optim.mixed_precision import LossScaler

NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.weight"]
SKIP = NonFinite(kind="skip", limit=2)
CPU = torch.device("cpu")
NAN, INFINITY = float("nan"), float("inf")


def step(loss=1.0, *gradients):
    """Return a step; a gradient that is not passed is None."""
    tensors = [None if each is None else torch.as_tensor(each) for each in gradients]
    tensors += [None] * (len(NAMES) - len(tensors))
    output = RegressionOutput(torch.as_tensor(loss).requires_grad_(), torch.zeros(1), torch.zeros(1))
    return TrainOutput(None, tensors, output)


BAD = [
    (step(NAN, [1.0]), "NaN in loss."),
    (step(-INFINITY, [1.0]), "infinity in loss."),
    (step(1.0, [1.0], [0.0, NAN]), "NaN in layers.0.bias."),
    (
        step(1.0, [INFINITY, -INFINITY], None, [1.0, INFINITY]),
        "infinity in layers.0.weight, infinity in layers.1.weight.",
    ),
    (
        step(NAN, [NAN, INFINITY], [NAN], [NAN]),
        "NaN in loss, NaN in layers.0.weight, NaN in layers.0.bias, NaN in",
    ),
]
GOOD = [
    step(1.0, [1.0], None, [-2.0]),
    step(0.0),
    step(1.0, [3e38, 3e38], [1e30] * 9),
    step(-1e38, [-3e38] * 3),
]


@pytest.mark.parametrize(("bad", "named"), BAD)
def test_stop_rule_names_the_batch_and_the_tensors(bad, named):
    with pytest.raises(NonFiniteError, match=r"^epoch 3, batch 17: ") as caught:
        Guard(NonFinite(), NAMES).passes(bad, 3, 17)

    assert named in str(caught.value)
    assert isinstance(caught.value, StageError)


@pytest.mark.parametrize("good", GOOD)
def test_finite_gradients_pass_even_if_their_sum_overflows(good):
    assert Guard(NonFinite(), NAMES).passes(good, 1, 1)


@pytest.mark.parametrize("test", [_all_finite, _finite_norms], ids=["on a CPU", "on an accelerator"])
def test_fast_checks_find_every_non_finite_element(test):
    for bad, _ in BAD:
        assert not test(bad.item.loss, bad.gradients)
    for good in GOOD[:2]:
        assert test(good.item.loss, good.gradients)


def test_skip_rule_stops_the_run_after_its_limit(caplog):
    guard = Guard(SKIP, NAMES)
    good, bad = step(1.0), step(NAN)

    with caplog.at_level(logging.WARNING):
        passed = [guard.passes(each, 1, 1) for each in (bad, bad, good, bad, bad)]

    assert passed == [False, False, True, False, False]
    assert "epoch 1, batch 1: NaN in loss; this batch is skipped, 2 in a row" in caplog.text
    with pytest.raises(NonFiniteError, match="after 2 consecutive skipped batches"):
        guard.passes(bad, 1, 6)


@pytest.mark.parametrize("good", [step(1.0), step(1.0, [3e38, 3e38])], ids=["finite sum", "overflowing sum"])
def test_finite_batch_resets_the_count_of_skipped_batches(good):
    guard, bad = Guard(SKIP, NAMES), step(NAN)

    assert [guard.passes(each, 1, 1) for each in (bad, bad, good, bad)] == [False, False, True, False]
    assert guard.skipped == 1


def test_non_finite_sums_are_skipped_up_to_the_limit():
    guard, good, bad = Guard(SKIP, NAMES), *(step(1.0, [each]).gradients for each in (1.0, INFINITY))
    passed = [guard.passes_sum(each, 1, 4) for each in (bad, bad, good, bad)]
    resumed = Guard(SKIP, NAMES)
    resumed.load_state_dict(guard.state_dict())

    assert passed == [False, False, True, False]
    assert not resumed.passes_sum(bad, 1, 8)
    with pytest.raises(NonFiniteError, match=r"batch 12, accumulated gradients: infinity in layers.0.weight"):
        resumed.passes_sum(bad, 1, 12)


def test_resumed_guard_continues_its_count():
    guard, resumed = Guard(SKIP, NAMES), Guard(SKIP, NAMES)
    for iteration in (1, 2):
        guard.passes(step(NAN), 1, iteration)

    resumed.load_state_dict(guard.state_dict())

    with pytest.raises(NonFiniteError):
        resumed.passes(step(NAN), 1, 3)
    with pytest.raises(CheckpointError, match="skipped"):
        resumed.load_state_dict({})


def test_error_lists_only_the_first_tensors():
    names = [f"layers.{number}" for number in range(9)]
    bad = TrainOutput(None, [torch.tensor([NAN])] * 9, step(1.0).item)

    with pytest.raises(NonFiniteError, match=r"layers.4 and 4 more\. "):
        Guard(NonFinite(), names).passes(bad, 1, 1)


def test_sparse_complex_and_half_precision_gradients_are_checked():
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([1.0, NAN]), (3,), check_invariants=True
    )
    half = torch.full((9,), 60000.0, dtype=torch.float16)

    def passes(gradient):
        return Guard(SKIP, ["weight"]).passes(TrainOutput(None, [gradient], step(1.0).item), 1, 1)

    assert not passes(sparse)
    assert not passes(torch.tensor([1j, complex(0, INFINITY)]))
    assert passes(torch.tensor([1j, 1.0]))
    assert passes(half)


def test_norm_check_accepts_sparse_gradients_and_none():
    sparse, infinite = (
        torch.sparse_coo_tensor(
            torch.tensor([[0, 2]]), torch.tensor([1.0, last]), (3,), check_invariants=True
        )
        for last in (2.0, INFINITY)
    )

    assert _finite_norms(torch.tensor(1.0), [sparse])
    assert not _finite_norms(torch.tensor(1.0), [sparse, infinite])
    assert _finite_norms(torch.tensor(1.0), [])
    assert not _finite_norms(torch.tensor(NAN), [])


@pytest.mark.parametrize(("loss", "gradient"), [("cuda", "cuda:1"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_loss_and_gradients_may_be_on_different_devices(loss, gradient):
    """Fake tensors have a device but no values, so only the final read of the value fails."""
    with FakeTensorMode():
        given = torch.ones(3, device=gradient)
        item = RegressionOutput(torch.ones((), device=loss), given, given)

        with pytest.raises(DataDependentOutputException):
            Guard(SKIP, ["weight"]).passes(TrainOutput(None, [given], item), 1, 1)


@pytest.mark.gpu
def test_loss_on_a_cpu_and_gradients_on_an_accelerator_pass():
    item = step(1.0).item

    def passes(value):
        return Guard(SKIP, ["weight"]).passes(TrainOutput(None, [torch.tensor([value]).cuda()], item), 1, 1)

    assert passes(1.0)
    assert not passes(NAN)


@pytest.mark.parametrize("bad", [each for each, _ in BAD])
def test_error_of_the_guard_on_the_device_is_that_of_the_guard_on_the_host(bad):
    guard = DeviceGuard(NAMES, CPU)
    for iteration in range(1, 17):
        guard.passes(GOOD[0], 3, iteration)

    guard.passes(bad, 3, 17)

    with pytest.raises(NonFiniteError) as expected:
        Guard(NonFinite(), NAMES).passes(bad, 3, 17)
    iteration, error = guard.find_error()
    assert iteration == 17
    assert str(error) == str(expected.value)


@pytest.mark.parametrize("good", GOOD)
def test_finite_steps_leave_the_flag_unset(good):
    guard = DeviceGuard(NAMES, CPU)

    assert guard.passes(good, 1, 1)

    assert not guard.flag.item()
    assert guard.find_error() is None


def test_flag_stays_set_after_the_bad_step():
    guard = DeviceGuard(NAMES, CPU)

    for each in (step(NAN, [1.0]), GOOD[0]):
        guard.passes(each, 1, 1)

    assert guard.flag.item() == 1.0


@pytest.mark.parametrize(
    ("loss", "gradient"), [(1e300, [1e300, -1e300]), (1e300, [1.0]), (1.0, [1e300])], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_guard_on_the_device_measures_float64_beside_other_dtypes(loss, gradient, dtype):
    wide = step(torch.tensor(loss, dtype=torch.float64), torch.tensor(gradient, dtype=torch.float64), [1.0])
    wide.gradients[1] = wide.gradients[1].to(dtype)
    guard = DeviceGuard(NAMES, CPU)

    guard.passes(wide, 1, 1)

    assert not guard.flag.item()


@pytest.mark.parametrize("others", [[], [torch.tensor([NAN])]], ids=["only empty ones", "beside a NaN"])
def test_guard_on_the_device_leaves_out_gradients_without_elements(others):
    sparse = torch.zeros(3, 2).to_sparse()
    guard = DeviceGuard(NAMES, CPU)

    guard.passes(step(1.0, torch.empty(0, 3), sparse, *others), 1, 2)

    found = guard.find_error()
    assert (found and str(found[1]).partition(". ")[0]) == (
        "epoch 1, batch 2: NaN in layers.1.weight" if others else None
    )


def test_flag_and_scale_are_float32_as_the_kernels_read_them():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        scaler = LossScaler(CPU)
        guard = DeviceGuard(NAMES, CPU, scaler)
    finally:
        torch.set_default_dtype(default)

    scaler.begin_step()
    guard.passes(GOOD[0], 1, 1)

    assert guard.flag.dtype == guard._kernel_flag.dtype == scaler.absorb_overflow().dtype == torch.float32


def test_overflow_of_an_accumulated_sum_is_named():
    guard = DeviceGuard(NAMES, CPU)

    guard.passes_sum([torch.tensor([float("inf")]), None, None], 2, 4)

    message = str(guard.find_error()[1])
    assert message.startswith("epoch 2, batch 4, accumulated gradients: infinity in layers.0.weight")


def test_a_run_without_metrics_is_checked_when_the_table_is_full():
    guard = DeviceGuard(NAMES, CPU)
    guard.passes(step(NAN, [1.0]), 1, 1)

    with pytest.raises(NonFiniteError, match="epoch 1, batch 1: NaN in loss"):
        for iteration in range(2, MAX_RECORDED_STEPS + 2):
            guard.passes(GOOD[0], 1, iteration)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, fused=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
        lambda p: torch.optim.SGD(p, 0.1, fused=True),
        torch.optim.Adagrad,
    ],
)
def test_flag_skips_the_update_and_the_state_of_the_optimizer(make):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make([weight])
    stepper = Stepper([weight], optimizer)
    stepper.step([torch.ones(3)], 0.1)
    before = [weight.clone(), *(each.clone() for each in tensors(optimizer))]

    stepper.step([torch.full((3,), NAN)], 0.1, torch.ones(()))

    assert all(map(torch.equal, [weight, *tensors(optimizer)], before))


def test_unset_flag_changes_no_bit_of_the_update():
    weights = []
    for skip in (None, torch.zeros(())):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 7))
        stepper = Stepper([weight], torch.optim.Adam([weight], fused=True))
        for scale in (1.0, 0.5, -2.0):
            stepper.step([weight.detach() * scale], 0.01, skip)
        weights.append(weight)

    assert torch.equal(*weights)


def tensors(optimizer):
    states = optimizer.state.values()
    return [each for state in states for each in state.values() if isinstance(each, torch.Tensor)]


def test_weight_of_0_on_the_device_skips_one_update_without_an_error():
    guard = DeviceGuard(NAMES, torch.device("cpu"))
    bad = step(NAN, [NAN])

    guard.passes(bad, 1, 1, torch.tensor(0.0))
    is_skipped = guard.flag.item()
    guard.passes(GOOD[0], 1, 2, torch.tensor(0.5))

    assert (is_skipped, guard.flag.item()) == (1.0, 0.0)
    assert guard.find_error() is None
    guard.passes(bad, 1, 3, torch.tensor(0.5))
    assert guard.flag.item() == 1.0
    assert "epoch 1, batch 3: NaN in loss" in str(guard.find_error()[1])


def test_sum_of_weight_0_on_the_device_skips_the_update():
    guard = DeviceGuard(NAMES, torch.device("cpu"))

    guard.passes_sum([torch.tensor([NAN])], 1, 1, torch.tensor(0.0))

    assert guard.flag.item() == 1.0
    assert guard.find_error() is None
