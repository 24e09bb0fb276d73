"""A step of the stepper has the same bits as a step of torch's own optimizer."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from torch.optim import lr_scheduler

from stages.contracts.errors import BuilderError, StageError
from stages.optim import ClipByGlobalNorm, Stepper, torch_patches, without_dynamo
from stages.optim.fused_kernels import round_rate
from stages.records import NamedMpkGzFileRecorder
from stages.system.patches import find_problems

SHAPES = [(5, 3), (3,), (2, 2, 2), (4,)]
OPTIMIZERS = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.1, eps=1e-5, fused=True),
    "adam with decay": lambda groups: torch.optim.Adam(groups, lr=0.1, weight_decay=0.3, fused=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9), fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, weight_decay=0.3, fused=True),
    "sgd with momentum": lambda groups: torch.optim.SGD(
        groups, lr=0.1, momentum=0.9, dampening=0.1, fused=True
    ),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, fused=True),
}
OTHERS = {
    "adam, not fused": lambda groups: torch.optim.Adam(groups, lr=0.1),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True, fused=True),
    "maximize": lambda groups: torch.optim.SGD(groups, lr=0.1, maximize=True, fused=True),
    "a tensor as rate": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.1), fused=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.1),
}


def parameters():
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients(step, *, missing=()):
    generator = torch.Generator().manual_seed(100 + step)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [None if index in missing else gradient for index, gradient in enumerate(drawn)]


def in_groups(parameters):
    return [
        {"params": parameters[:1]},
        {"params": parameters[1:3], "lr": 0.02, "weight_decay": 0.01},
        {"params": parameters[3:], "lr": 0.3},
    ]


def step_as_torch_does(optimizer, parameters, gradients, rates):
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()


def assert_same(left, right):
    """Assert that two trees have the same tensors, bit for bit, and the same other values."""
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def missing_in(step, kind):
    """Return the parameters without a gradient: 2 in some steps; 1 at first, unless *kind* is sgd."""
    absent = {2} if step % 3 == 1 else set()
    return absent | ({1} if step < 4 and "adam" in kind else set())


@pytest.mark.parametrize("kind", [*OPTIMIZERS, *OTHERS])
@pytest.mark.parametrize("grouped", [False, True], ids=["one group", "three groups"])
def test_twenty_steps_equal_the_optimizers_own_bit_for_bit(kind, grouped):
    build = {**OPTIMIZERS, **OTHERS}[kind]
    ours, theirs = parameters(), parameters()
    optimizer, reference = (build(in_groups(each) if grouped else each) for each in (ours, theirs))
    stepper = Stepper(ours, optimizer)
    initial = [float(group["lr"]) for group in optimizer.param_groups]

    for step in range(20):
        rate = 0.1 / (1 + step)
        given = gradients(step, missing=missing_in(step, kind))
        stepper.step(given, rate)
        step_as_torch_does(reference, theirs, given, [rate * (each / initial[0]) for each in initial])

    assert_same(ours, theirs)
    assert_same(optimizer.state_dict(), reference.state_dict())
    assert all(parameter.grad is None for parameter in ours)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_kernels_are_used_for_plain_fused_optimizers(kind):
    ours = parameters()

    assert Stepper(ours, OPTIMIZERS[kind](ours))._lanes


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_step_themselves_if_the_fast_path_is_off_with_the_same_bits(kind):
    ours, theirs = parameters(), parameters()
    fast, off = OPTIMIZERS[kind](ours), OPTIMIZERS[kind](theirs)
    fast_stepper, stepper = Stepper(ours, fast), Stepper(theirs, off, fast_path="off")

    for step in range(4):
        fast_stepper.step(gradients(step), 0.1)
        stepper.step(gradients(step), 0.1)

    assert stepper._lanes is None
    assert_same(ours, theirs)
    assert_same(fast.state_dict(), off.state_dict())


@pytest.mark.parametrize("kind", OTHERS)
def test_kernels_are_not_used_for_other_optimizers(kind):
    ours = parameters()

    assert Stepper(ours, OTHERS[kind](ours))._lanes is None


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_loaded_state_resumes_bit_for_bit(kind):
    """A stepper that has already made steps resumes exactly too."""
    build = OPTIMIZERS[kind]
    unbroken, broken = parameters(), parameters()
    stepper, resumed = (Stepper(each, build(in_groups(each))) for each in (unbroken, broken))
    resumed.step(gradients(99), 0.5)
    for step in range(5):
        stepper.step(gradients(step), 0.1)

    with torch.no_grad():
        for source, target in zip(unbroken, broken, strict=True):
            target.copy_(source)
    resumed.optimizer.load_state_dict(copy.deepcopy(stepper.optimizer.state_dict()))
    for step in range(5, 10):
        stepper.step(gradients(step), 0.1)
        resumed.step(gradients(step), 0.1)

    assert_same(unbroken, broken)
    assert_same(stepper.optimizer.state_dict(), resumed.optimizer.state_dict())


@pytest.mark.parametrize("fast_path", ["auto", "off"])
def test_velocity_of_a_parameter_can_start_later(fast_path):
    """Torch's own fused step fails then, so the expected values are those of the plain one."""
    ours, theirs = parameters(), parameters()
    optimizer = torch.optim.SGD(ours, lr=0.1, momentum=0.9, dampening=0.1, fused=True)
    stepper = Stepper(ours, optimizer, fast_path=fast_path)
    reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, dampening=0.1, foreach=False)

    for step, missing in enumerate([{1, 3}, {3}, set(), {0}, set()]):
        given = gradients(step, missing=missing)
        stepper.step(given, 0.1)
        step_as_torch_does(reference, theirs, given, [0.1])

    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)


def test_hooks_are_called():
    ours, calls = parameters(), []
    stepper = Stepper(ours, torch.optim.Adam(ours, fused=True))
    stepper.step(gradients(0), 0.1)

    handle = stepper.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    stepper.step(gradients(1), 0.1)
    handle.remove()
    stepper.step(gradients(2), 0.1)

    assert calls == [1]
    assert stepper.optimizer.state[ours[0]]["step"] == 3


def test_replaced_step_is_called():
    ours, calls = parameters(), []
    optimizer = torch.optim.Adam(ours, fused=True)
    optimizer.step = lambda: calls.append(1)

    Stepper(ours, optimizer).step(gradients(0), 0.1)

    assert calls == [1]


def test_torch_scheduler_sets_the_rates_of_the_groups_without_a_warning():
    ours = parameters()
    optimizer = torch.optim.Adam(in_groups(ours), lr=0.1, fused=True)
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda n: 0.5**n, lambda n: 1.0, lambda n: 0.1**n])
    stepper = Stepper(ours, optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            stepper.step(gradients(step), None)
            scheduler.step()

    assert stepper._lanes
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.025, 0.02, 0.003])


def test_group_added_later_keeps_its_ratio():
    ours = parameters()
    stepper = Stepper(ours, torch.optim.Adam(ours[:2], lr=0.1, fused=True))
    stepper.step(gradients(0), 0.1)
    before = ours[3].clone()

    stepper.optimizer.add_param_group({"params": ours[2:], "lr": 0.2})
    stepper.step(gradients(1), 0.05)

    assert [group["lr"] for group in stepper.optimizer.param_groups] == [0.05, 0.1]
    assert not torch.equal(before, ours[3])


@pytest.mark.parametrize("build", [OPTIMIZERS["adam"], OPTIMIZERS["sgd"], OTHERS["rmsprop"]])
def test_gradients_of_any_memory_layout_give_the_same_step(build):
    """Torch's fused kernels read memory in sequence and ignore the strides of a gradient."""
    (weight,), (reference,) = ([torch.nn.Parameter(torch.zeros(3, 2))] for _ in "ab")
    stepper, plain = (Stepper([each], build([each])) for each in (weight, reference))
    transposed = torch.arange(6.0).reshape(2, 3).t()
    expanded = torch.autograd.grad(weight.sum(), [weight])[0]
    assert expanded.stride() == (0, 0)

    for gradient in (transposed, expanded):
        stepper.step([gradient], 0.1)
        plain.step([gradient.clone(memory_format=torch.contiguous_format)], 0.1)

    assert torch.equal(weight, reference)


@pytest.mark.parametrize("fused", [True, False])
def test_parameter_whose_elements_share_memory_is_rejected(fused):
    parameter = torch.nn.Parameter(torch.ones(1).expand(3))

    with pytest.raises(
        BuilderError, match=r"of shape \(3,\) has the strides \(0,\).* share memory.*clone\(\)"
    ):
        Stepper([parameter], torch.optim.Adam([parameter], fused=fused))


def test_parameter_with_gaps_in_memory_is_rejected():
    weight = torch.nn.Parameter(torch.zeros(4, 4)[:, :2])

    with pytest.raises(BuilderError, match=r"strides \(4, 1\).*fused=False"):
        Stepper([weight], torch.optim.Adam([weight], fused=True))
    Stepper([weight], torch.optim.Adam([weight], fused=False))


def test_first_group_with_a_rate_of_zero_is_rejected():
    ours = parameters()

    with pytest.raises(BuilderError, match="first rate of 0 are undefined"):
        Stepper(ours, torch.optim.Adam([{"params": ours[:1], "lr": 0.0}, {"params": ours[1:]}], fused=True))


def test_parameters_outside_the_optimizer_do_not_change():
    ours = parameters()
    before = ours[0].clone()

    Stepper(ours, torch.optim.Adam(ours[1:], fused=True)).step(gradients(0), 0.1)

    assert torch.equal(before, ours[0])


def test_group_with_two_dtypes_is_updated():
    ours = [torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    stepper = Stepper(ours, torch.optim.Adam(ours, fused=True))

    stepper.step([torch.ones_like(each) for each in ours], 0.1)

    assert [each.dtype for each in ours] == [torch.float32, torch.float64]
    assert all(torch.allclose(each, torch.full_like(each, 0.9)) for each in ours)


def test_lbfgs_finds_the_minimum_of_a_quadratic():
    scale, target = torch.tensor([1.0, 10.0, 100.0]), torch.tensor([3.0, -2.0, 1.0])
    weight = torch.nn.Parameter(torch.zeros(3))
    stepper = Stepper([weight], torch.optim.LBFGS([weight], lr=1.0, line_search_fn="strong_wolfe"))

    def closure():
        loss = (scale * (weight - target) ** 2).sum()
        return loss, torch.autograd.grad(loss, [weight])

    first = stepper.step_with_closure(closure, 1.0)
    for _ in range(2):
        stepper.step_with_closure(closure, 1.0)

    assert first == 9 + 40 + 100
    assert torch.allclose(weight, target, atol=1e-4)
    assert weight.grad is None


def test_lbfgs_rejects_gradients_of_one_evaluation():
    weight = torch.nn.Parameter(torch.zeros(3))

    with pytest.raises(BuilderError, match="step_with_closure"):
        Stepper([weight], torch.optim.LBFGS([weight])).step([torch.ones(3)], 1.0)


def test_torch_with_another_kernel_is_rejected(monkeypatch):
    renamed = replace(torch_patches.PATCHES[0], signature="(self, gradients)")
    monkeypatch.setattr(torch_patches, "PATCHES", (renamed, *torch_patches.PATCHES[1:]))
    torch_patches.check.cache_clear()
    ours = parameters()

    with pytest.raises(StageError, match=r"torch .*_fused_adam_.* not \(self, gradients\). Install torch >="):
        Stepper(ours, OPTIMIZERS["adam"](ours))


def test_private_names_of_torch_match():
    assert find_problems(torch_patches.PATCHES) == []


def test_without_dynamo_restores_the_methods():
    methods = [getattr(torch.optim.Optimizer, name) for name in ("add_param_group", "state_dict")]
    before = [dict(vars(each.__wrapped__)) for each in methods]

    with without_dynamo():
        pass

    assert [dict(vars(each.__wrapped__)) for each in methods] == before


def convolution(build):
    """Return a channels-last convolution with fixed weights, and its stepper."""
    model = torch.nn.Conv2d(3, 4, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model = model.to(memory_format=torch.channels_last)
    return model, Stepper(list(model.parameters()), build(model.parameters()))


def take_steps(model, stepper, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        drawn = [torch.randn(each.shape, generator=generator) for each in model.parameters()]
        stepper.step(drawn, 0.1)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd with momentum"])
@pytest.mark.parametrize("told", [True, False], ids=["refreshed", "noticed"])
def test_channels_last_model_resumes_from_a_record_bit_for_bit(kind, told, tmp_path):
    """A record is row-major, and the fused kernels ignore strides."""
    unbroken, stepper = convolution(OPTIMIZERS[kind])
    resumed, other = convolution(OPTIMIZERS[kind])
    take_steps(unbroken, stepper, range(3))
    saved = stepper.optimizer.state_dict()
    state = {str(number): kept for number, kept in saved["state"].items()}
    tree = {"model": dict(unbroken.state_dict()), "optim": {**saved, "state": state}}
    NamedMpkGzFileRecorder().record(tree, tmp_path / "run")

    loaded = NamedMpkGzFileRecorder().load(tmp_path / "run")
    resumed.load_state_dict(loaded["model"])
    state = {int(number): kept for number, kept in loaded["optim"]["state"].items()}
    other.optimizer.load_state_dict({**loaded["optim"], "state": state})
    if told:
        other.refresh()
    take_steps(unbroken, stepper, range(3, 6))
    take_steps(resumed, other, range(3, 6))

    assert_same(list(resumed.parameters()), list(unbroken.parameters()))
    assert_same(other.optimizer.state_dict()["state"], stepper.optimizer.state_dict()["state"])
    for parameter, kept in other.optimizer.state.items():
        assert all(each.stride() == parameter.stride() for each in kept.values() if each.ndim)


@pytest.mark.parametrize("kind", [*OPTIMIZERS, *OTHERS])
def test_step_without_gradients_changes_no_parameter(kind):
    ours, calls = parameters(), []
    stepper = Stepper(ours, {**OPTIMIZERS, **OTHERS}[kind](ours), ClipByGlobalNorm(max_norm=1.0))
    stepper.step(gradients(0), 0.1)
    stepper.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    before = copy.deepcopy((ours, stepper.optimizer.state_dict()))

    stepper.step([None] * len(ours), 0.7)

    assert_same(ours, before[0])
    assert_same(stepper.optimizer.state_dict(), before[1])
    assert calls == []


def replace_step(optimizer):
    original = optimizer.step

    def step():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad * 2
        original()

    optimizer.step = step


def replace_a_moment(optimizer):
    first = next(iter(optimizer.state.values()), {})
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            first[name] = torch.full_like(value, 2.0)


def empty_entries(optimizer):
    for entries in optimizer.state.values():
        entries.clear()


CHANGES = {
    "step replaced": replace_step,
    "rate": lambda optimizer: optimizer.param_groups[0].update(lr=0.5),
    "rate of one group": lambda optimizer: optimizer.param_groups[-1].update(lr=0.5),
    "maximize": lambda optimizer: optimizer.param_groups[0].update(maximize=True),
    "weight decay": lambda optimizer: optimizer.param_groups[0].update(weight_decay=0.5),
    "not fused": lambda optimizer: optimizer.param_groups[0].update(fused=False),
    "betas and momentum": lambda optimizer: [
        group.update({"betas": (0.5, 0.6)} if "betas" in group else {"momentum": 0.5})
        for group in optimizer.param_groups
    ],
    "state emptied": lambda optimizer: optimizer.state.clear(),
    "state replaced": lambda optimizer: setattr(optimizer, "state", type(optimizer.state)(dict)),
    "entries emptied": empty_entries,
    "one entry deleted": lambda optimizer: optimizer.state.pop(next(iter(optimizer.state), None), None),
    "one entry replaced": replace_a_moment,
}


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "sgd with momentum"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("grouped", [False, True], ids=["one group", "three groups"])
def test_changes_after_construction_have_the_same_effect_as_in_torch(kind, change, grouped):
    if kind == "sgd with momentum" and change == "one entry deleted":
        pytest.skip("torch's own fused SGD fails without one of several velocities")
    ours, theirs = parameters(), parameters()
    optimizer, reference = (OPTIMIZERS[kind](in_groups(p) if grouped else p) for p in (ours, theirs))
    stepper = Stepper(ours, optimizer)

    for step in range(4):
        if step == 2:
            CHANGES[change](optimizer)
            CHANGES[change](reference)
        stepper.step(gradients(step), None)
        rates = [group["lr"] for group in reference.param_groups]
        step_as_torch_does(reference, theirs, gradients(step), rates)

    assert_same(ours, theirs)
    assert_same(optimizer.state_dict(), reference.state_dict())


def test_amsgrad_can_be_enabled_before_the_first_step():
    ours, theirs = parameters(), parameters()
    optimizer, reference = (OPTIMIZERS["adam"](each) for each in (ours, theirs))
    stepper = Stepper(ours, optimizer)
    stepper.step(gradients(0), None)
    step_as_torch_does(reference, theirs, gradients(0), [0.1])

    for each in (optimizer, reference):
        each.state.clear()
        each.param_groups[0]["amsgrad"] = True
    for step in (1, 2):
        stepper.step(gradients(step), None)
        step_as_torch_does(reference, theirs, gradients(step), [0.1])

    assert_same(optimizer.state_dict(), reference.state_dict())
    assert_same(ours, theirs)


def test_state_keeps_its_dtype_in_the_layout_of_its_parameter():
    weight = torch.nn.Parameter(
        torch.zeros(2, 3, 2, 2, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    )
    optimizer = torch.optim.SGD([weight], lr=0.1)
    moment = torch.linspace(0, 1, 24).reshape(2, 3, 2, 2)
    optimizer.state[weight]["moment"] = moment

    Stepper([weight], optimizer)

    assert optimizer.state[weight]["moment"].stride() == weight.stride()
    assert torch.equal(optimizer.state[weight]["moment"], moment)
    assert optimizer.state[weight]["moment"].dtype == torch.float32


def test_step_replaced_before_construction_is_used():
    ours = parameters()
    optimizer = OPTIMIZERS["adam"](ours)
    lr_scheduler.StepLR(optimizer, 3)  # which replaces the step by one that counts
    stepper = Stepper(ours, optimizer)

    stepper.step(gradients(0), 0.1)

    assert not stepper.is_changed()


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_step_at_rates_on_the_device_has_the_bits_of_a_step_at_numbers(build):
    with_numbers, with_tensors = parameters(), parameters()
    steppers = [Stepper(each, build(in_groups(each))) for each in (with_numbers, with_tensors)]
    for stepper in steppers:
        stepper.step(gradients(0), 0.3)

    steppers[0].step(gradients(1), 0.2)
    steppers[1].set_rates(0.2)
    rates = steppers[1].rates
    with steppers[1].rates_from([torch.tensor(rate, dtype=torch.float64) for rate in rates]):
        steppers[1].step(gradients(1), None)

    assert all(torch.equal(ours, theirs) for ours, theirs in zip(with_tensors, with_numbers, strict=True))
    assert [group["lr"] for group in steppers[1].optimizer.param_groups] == rates


def test_rate_is_rounded_to_float32_on_cuda_only():
    on_cuda, on_cpu = (round_rate(0.1, torch.device(name)) for name in ("cuda:1", "cpu"))

    assert on_cuda == torch.tensor(0.1, dtype=torch.float32).item() != 0.1
    assert on_cpu == 0.1


def test_constant_options_are_those_that_a_step_reads_except_for_the_rate():
    optimizer = OPTIMIZERS["adamw"](parameters())
    stepper = Stepper(optimizer.param_groups[0]["params"], optimizer)
    before = stepper.constant_options

    optimizer.param_groups[0]["lr"] = 0.5
    assert stepper.constant_options == before
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    assert stepper.constant_options != before


def test_change_is_used_at_the_next_check_of_an_interval():
    ours, theirs = parameters(), parameters()
    optimizer, reference = OPTIMIZERS["adam"](ours), OPTIMIZERS["adam"](theirs)
    stepper = Stepper(ours, optimizer, check_interval=64)

    for step in range(4):
        if step == 2:
            for each in (optimizer, reference):
                replace_a_moment(each)
            stepper.check_next()
        stepper.step(gradients(step), 0.1)
        step_as_torch_does(reference, theirs, gradients(step), [0.1])

    assert_same(ours, theirs)
    assert_same(optimizer.state_dict(), reference.state_dict())


@pytest.mark.parametrize("updates", [1, 63])
def test_change_is_used_within_an_interval(updates):
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    stepper = Stepper([weight], optimizer, check_interval=64)
    for _ in range(updates):
        stepper.step([torch.ones(())], 0.1)

    optimizer.param_groups[0]["maximize"] = True
    for _ in range(64):
        stepper.step([torch.ones(())], 0.1)
    before = weight.item()
    stepper.step([torch.ones(())], 0.1)

    assert weight.item() > before
