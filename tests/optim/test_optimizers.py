"""Optimizers from params: Burn's defaults, Burn's arithmetic."""

import copy
import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from stages.contracts.errors import BuilderError
from stages.optim import (
    AdaGrad,
    Adam,
    AdamW,
    Adan,
    ClipByNorm,
    Lamb,
    Lbfgs,
    Lion,
    Muon,
    OptimizerConfig,
    RmsProp,
    Sgd,
    Stepper,
    build_model_optimizer,
    build_optimizer,
)

CONFIGS = [
    Adam(),
    Adam(amsgrad=True, weight_decay=0.1),
    AdamW(weight_decay=0.1),
    Sgd(weight_decay=0.1),
    Sgd(momentum=0.9, weight_decay=0.1),
    Sgd(momentum=0.9, dampening=0.0, nesterov=True),
    Sgd(momentum=0.9, dampening=0.1, nesterov=True),
    AdamW(weight_decay=0.1, cautious_weight_decay=True),
    RmsProp(weight_decay=0.1),
    RmsProp(centered=True, momentum=0.0),
    AdaGrad(lr_decay=0.1, weight_decay=0.1),
]
FURTHER = [
    Adan(weight_decay=0.1),
    Adan(weight_decay=0.1, no_prox=True),
    Lion(weight_decay=0.1),
    Lamb(weight_decay=0.1),
    Lamb(use_trust_ratio=False),
]
"""Optimizers that torch lacks."""


def burn(config, weight, gradients, rate):
    """Return *weight* after *gradients*, by Burn's formulas in plain floats."""
    first = second = highest = velocity = 0.0
    for step, gradient in enumerate(gradients, start=1):
        decay = config.weight_decay
        if isinstance(config, AdamW):
            mean = config.beta_1 * first + (1 - config.beta_1) * gradient
            if not config.cautious_weight_decay or (mean >= 0) == (weight >= 0):
                weight -= rate * decay * weight
        else:
            gradient = gradient + decay * weight  # noqa: PLW2901  as the formula reads
        match config:
            case Adam() | AdamW():
                first = config.beta_1 * first + (1 - config.beta_1) * gradient
                second = config.beta_2 * second + (1 - config.beta_2) * gradient**2
                highest = max(highest, second) if config.amsgrad else second
                mean, square = first / (1 - config.beta_1**step), highest / (1 - config.beta_2**step)
                update = mean / (math.sqrt(square) + config.epsilon)
            case Sgd():
                update = gradient
                if config.momentum:
                    kept = 1.0 if step == 1 else 1 - config.dampening
                    velocity = config.momentum * velocity + kept * gradient
                    update = gradient + config.momentum * velocity if config.nesterov else velocity
            case RmsProp():
                second = config.alpha * second + (1 - config.alpha) * gradient**2
                first = config.alpha * first + (1 - config.alpha) * gradient
                spread = second - first**2 if config.centered else second
                velocity = config.momentum * velocity + gradient / (math.sqrt(spread) + config.epsilon)
                update = velocity
            case AdaGrad():
                second += gradient**2
                update = gradient / (math.sqrt(second) + config.epsilon) / (1 + (step - 1) * config.lr_decay)
        weight -= rate * update
    return weight


def further(config, weight, gradients, rate):
    """Return *weight* after *gradients*, by Burn's formulas of the optimizers that torch lacks."""
    first = second = change = before = 0.0
    for step, gradient in enumerate(gradients, start=1):
        decay = rate * config.weight_decay
        match config:
            case Adan():
                apart, before = (gradient - before if step > 1 else 0.0), gradient
                first = config.beta_1 * first + (1 - config.beta_1) * gradient
                change = config.beta_2 * change + (1 - config.beta_2) * apart
                second = (
                    config.beta_3 * second + (1 - config.beta_3) * (gradient + config.beta_2 * apart) ** 2
                )
                mean = first / (1 - config.beta_1**step) + config.beta_2 * change / (1 - config.beta_2**step)
                update = mean / (math.sqrt(second / (1 - config.beta_3**step)) + config.epsilon)
                kept = weight * (1 - decay) if config.no_prox else weight
                weight = kept - rate * update if config.no_prox else (kept - rate * update) / (1 + decay)
            case Lion():
                sign = math.copysign(1.0, config.beta_1 * first + (1 - config.beta_1) * gradient)
                weight = weight * (1 - decay) - rate * sign
                first = config.beta_2 * first + (1 - config.beta_2) * gradient
            case Lamb():
                first = config.beta_1 * first + (1 - config.beta_1) * gradient
                second = config.beta_2 * second + (1 - config.beta_2) * gradient**2
                spread = math.sqrt(second / (1 - config.beta_2**step)) + config.epsilon
                update = first / (1 - config.beta_1**step) / spread + config.weight_decay * weight
                weight -= rate * update * (abs(weight / update) if config.use_trust_ratio else 1)
    return weight


@pytest.mark.parametrize("config", [*CONFIGS, *FURTHER], ids=lambda config: f"{config.kind}")
def test_twenty_steps_equal_burns_arithmetic(config):
    gradients = [math.sin(3.0 * step) + 0.3 for step in range(20)]
    weight = torch.nn.Parameter(torch.tensor([0.7], dtype=torch.float64))
    stepper = Stepper([weight], build_optimizer(config, [weight]))

    for gradient in gradients:
        stepper.step([torch.tensor([gradient], dtype=torch.float64)], 0.01)

    formula = further if config in FURTHER else burn
    assert weight.item() == pytest.approx(formula(config, 0.7, gradients, 0.01), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("adam", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-5, "weight_decay": 0.0, "amsgrad": False}),
        ("adamw", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-5, "weight_decay": 1e-4}),
        ("sgd", {"momentum": None, "dampening": 0.1, "nesterov": False, "weight_decay": 0.0}),
        ("rmsprop", {"alpha": 0.99, "momentum": 0.9, "epsilon": 1e-5, "centered": False}),
        ("adagrad", {"lr_decay": 0.0, "epsilon": 1e-5}),
        ("adan", {"beta_1": 0.98, "beta_2": 0.92, "beta_3": 0.99, "epsilon": 1e-8, "no_prox": False}),
        ("lion", {"beta_1": 0.9, "beta_2": 0.99, "weight_decay": 0.0}),
        ("lamb", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "use_trust_ratio": True}),
        (
            "muon",
            {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "epsilon": 1e-7, "adjust_lr": "original"},
        ),
        ("lbfgs", {"max_iter": 20, "history_size": 100, "tolerance_grad": 1e-7, "tolerance_change": 1e-9}),
    ],
)
def test_defaults_equal_those_of_burn(kind, defaults):
    config = TypeAdapter(OptimizerConfig).validate_python({"kind": kind})

    assert config.clipping is None
    assert {name: getattr(config, name) for name in defaults} == defaults


@pytest.mark.parametrize("config", [*CONFIGS, Muon(), Lbfgs()], ids=lambda config: config.kind)
def test_optimizer_config_survives_a_json_round_trip(config):
    adapter = TypeAdapter(OptimizerConfig)

    assert adapter.validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "sgd", "nesterov": True}, "nesterov with momentum None .* momentum: 0.9"),
        ({"kind": "adam", "learning_rate": 0}, "must be a finite number above 0"),
        ({"kind": "adam", "lr": 0.1}, "Extra inputs"),
        ({"kind": "adam", "clipping": {"kind": "norm"}}, "max_norm"),
        (
            {"kind": "muon", "others": {"clipping": {"kind": "norm", "max_norm": 1}}},
            "muon clips all gradients",
        ),
    ],
)
def test_invalid_optimizer_config_is_rejected(section, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(OptimizerConfig).validate_python(section)


def test_stepper_clips_the_gradients():
    weight = torch.nn.Parameter(torch.zeros(2))
    config = Sgd(learning_rate=1.0, clipping=ClipByNorm(max_norm=1.0))

    Stepper([weight], build_optimizer(config, [weight]), config.clipping).step(
        [torch.tensor([3.0, -4.0])], 1.0
    )

    assert weight.tolist() == pytest.approx([-0.6, 0.8])


@pytest.mark.parametrize("odd", [torch.zeros(4, 4)[:, :2], torch.zeros(2, dtype=torch.complex64)])
def test_parameters_without_a_fused_kernel_use_the_plain_optimizer(odd):
    weight = torch.nn.Parameter(odd)
    stepper = Stepper([weight], build_optimizer(Adam(), [weight]))

    stepper.step([torch.ones_like(weight)], 0.1)

    assert torch.allclose(weight, torch.full_like(weight, -0.1), atol=1e-4)


def muon_parameters():
    generator = torch.Generator().manual_seed(5)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator))
        for shape in [(4, 3), (4,), (2, 3, 3), (2, 4)]
    ]


def muon_gradients(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(each.shape, generator=generator) for each in muon_parameters()]


def test_muon_updates_matrices_and_adamw_the_rest():
    config = Muon(learning_rate=0.02, weight_decay=0.1, others=AdamW(learning_rate=0.001))
    ours, theirs = muon_parameters(), muon_parameters()
    matrices, rest = [theirs[0], theirs[3]], [theirs[1], theirs[2]]
    stepper = Stepper(ours, build_optimizer(config, ours))
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95)
    adamw = torch.optim.AdamW(rest, lr=0.001, eps=1e-5, weight_decay=1e-4, fused=True)

    for step in range(5):
        rate = 0.02 / (step + 1)
        stepper.step(muon_gradients(step), rate)
        for optimizer, share in ((muon, 1.0), (adamw, 0.001 / 0.02)):
            optimizer.param_groups[0]["lr"] = rate * share
        for parameter, gradient in zip(theirs, muon_gradients(step), strict=True):
            parameter.grad = gradient
        muon.step()
        adamw.step()

    assert all(torch.equal(left, right) for left, right in zip(ours, theirs, strict=True))


def test_muon_of_a_model_reads_linear_layers_with_burns_axes():
    model = torch.nn.Linear(8, 2, bias=False)
    alone = torch.nn.Parameter(model.weight.detach().clone())
    for optimizer, weight in (
        (build_model_optimizer(Muon(), model), model.weight),
        (build_optimizer(Muon(), [alone]), alone),
    ):
        weight.data.zero_()
        Stepper([weight], optimizer).step([torch.arange(16.0).reshape(2, 8)], 0.1)

    torch.testing.assert_close(model.weight, alone * math.sqrt(8 / 2), rtol=0.02, atol=1e-4)


def test_every_option_of_muon_is_passed_to_torch():
    settings = {"momentum": 0.8, "nesterov": False, "ns_steps": 3, "weight_decay": 0.1}
    settings["ns_coefficients"] = (2.0, -1.5, 0.5)
    weight, reference = (torch.nn.Parameter(torch.eye(3, 4) + 0.1) for _ in "ab")
    config = Muon(learning_rate=0.02, epsilon=1e-3, adjust_lr="match_rms_adamw", **settings)
    theirs = torch.optim.Muon([reference], lr=0.02, eps=1e-3, adjust_lr_fn="match_rms_adamw", **settings)
    stepper = Stepper([weight], build_optimizer(config, [weight]))

    for step in range(3):
        gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        stepper.step([gradient], 0.02)
        reference.grad = gradient
        theirs.step()

    assert torch.equal(weight, reference)


def test_dampened_velocity_of_muon_equals_that_of_sgd():
    weight, reference = (torch.nn.Parameter(torch.zeros(3, 4)) for _ in "ab")
    stepper = Stepper([weight], build_optimizer(Muon(momentum=0.8, dampening=0.3), [weight]))
    sgd = torch.optim.SGD([reference], lr=0.1, momentum=0.8, dampening=0.3)

    for step in range(4):
        gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        stepper.step([gradient], 0.02)
        reference.grad = gradient
        sgd.step()

    velocity = stepper.optimizer.state[weight]["momentum_buffer"] / (1 - 0.8)
    torch.testing.assert_close(velocity, sgd.state[reference]["momentum_buffer"])


def test_muon_resumes_from_its_state_bit_for_bit():
    unbroken = muon_parameters()
    stepper = Stepper(unbroken, build_optimizer(Muon(), unbroken))
    for step in range(3):
        stepper.step(muon_gradients(step), 0.02)
    broken = [torch.nn.Parameter(parameter.detach().clone()) for parameter in unbroken]
    resumed = Stepper(broken, build_optimizer(Muon(), broken))
    resumed.optimizer.load_state_dict(copy.deepcopy(stepper.optimizer.state_dict()))

    for step in range(3, 6):
        stepper.step(muon_gradients(step), 0.02)
        resumed.step(muon_gradients(step), 0.02)

    assert all(torch.equal(left, right) for left, right in zip(unbroken, broken, strict=True))


def test_adamw_of_muon_keeps_its_rate_in_a_model_without_matrices():
    """A network of convolutions has no matrix, and the schedule of the run is that of Muon's rate."""
    ours, theirs = (torch.nn.Parameter(torch.ones(2, 3, 3)) for _ in "ab")
    config = Muon(learning_rate=0.02, others=AdamW(learning_rate=0.001))
    stepper = Stepper([ours], build_optimizer(config, [ours]))
    adamw = torch.optim.AdamW([theirs], lr=0.001, eps=1e-5, weight_decay=1e-4, fused=True)

    for rate in (0.02, 0.01):
        stepper.step([torch.ones(2, 3, 3)], rate)
        adamw.param_groups[0]["lr"] = rate * (0.001 / 0.02)
        theirs.grad = torch.ones(2, 3, 3)
        adamw.step()

    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shapes", [[(2, 2)], [(2,)]])
def test_muon_accepts_models_with_only_matrices_or_without_any(shapes):
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]

    Stepper(parameters, build_optimizer(Muon(), parameters)).step([torch.ones(shapes[0])], 0.1)

    assert (parameters[0] < 1).all()


def test_only_lbfgs_needs_a_closure():
    weight = torch.nn.Parameter(torch.zeros(2))

    needing = [config.kind for config in (*CONFIGS, Muon(), Lbfgs()) if needs(config, weight)]

    assert needing == ["lbfgs"]


def needs(config, weight):
    return Stepper([weight], build_optimizer(config, [weight])).needs_closure


def test_lbfgs_resumes_bit_for_bit():
    def closure_of(weight):
        def closure():
            loss = ((weight - torch.arange(4.0)) ** 4).sum()
            return loss, torch.autograd.grad(loss, [weight])

        return closure

    config = Lbfgs(max_iter=2, line_search="strong_wolfe")
    unbroken = torch.nn.Parameter(torch.zeros(4))
    stepper = Stepper([unbroken], build_optimizer(config, [unbroken]))
    stepper.step_with_closure(closure_of(unbroken), 1.0)
    broken = torch.nn.Parameter(unbroken.detach().clone())
    resumed = Stepper([broken], build_optimizer(config, [broken]))
    resumed.optimizer.load_state_dict(copy.deepcopy(stepper.optimizer.state_dict()))

    for each, weight in ((stepper, unbroken), (resumed, broken)):
        each.step_with_closure(closure_of(weight), 1.0)

    assert torch.equal(unbroken, broken)


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize(
    "config",
    [
        Sgd(),
        Sgd(momentum=0.9, dampening=0, nesterov=True),
        Sgd(momentum=0.9, weight_decay=0.1),
        Adam(),
        AdamW(),
    ],
    ids=str,
)
def test_every_element_of_every_dtype_is_trained(config, dtype):
    """In torch 2.13 the fused SGD of a CPU updates no vectorized element below four bytes."""
    ours = torch.nn.Parameter(torch.linspace(-1, 1, 1000).to(dtype))
    theirs = torch.nn.Parameter(ours.detach().double())
    optimizer, reference = (build_optimizer(config, [each]) for each in (ours, theirs))
    reference.param_groups[0].update(fused=False, foreach=False)
    stepper = Stepper([ours], optimizer)

    for step in range(5):
        gradient = (1.5 + torch.cos(torch.arange(1000.0) + step)).to(dtype)
        stepper.step([gradient], 0.05)
        reference.param_groups[0]["lr"] = 0.05
        theirs.grad = gradient.double()
        reference.step()

    assert torch.allclose(ours.double(), theirs, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALVES)
def test_fused_sgd_of_half_precision_parameters_on_a_cpu_is_rejected(dtype):
    """They are rejected even if only some parameters have half precision."""
    parameters = [torch.nn.Parameter(torch.zeros(40)), torch.nn.Parameter(torch.zeros(40, dtype=dtype))]

    with pytest.raises(BuilderError, match=f"{dtype}.*fused=False"):
        Stepper(parameters, torch.optim.SGD(parameters, lr=0.1, fused=True))
    for allowed in (torch.optim.SGD(parameters, lr=0.1), torch.optim.Adam(parameters, lr=0.1, fused=True)):
        Stepper(parameters, allowed)


def test_steps_are_counted_in_float32_whatever_the_default_dtype_is():
    """bfloat16 has no number between 256 and 258, so the correction of the means would stop there."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = build_optimizer(Adan(), [parameter])
    parameter.grad = torch.ones(1)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        for _ in range(300):
            optimizer.step()
    finally:
        torch.set_default_dtype(default)

    assert optimizer.state[parameter]["step"] == 300


@pytest.mark.parametrize("config", [*CONFIGS, *FURTHER, Muon()], ids=lambda config: config.kind)
def test_copy_of_a_model_and_its_optimizer_trains_as_they_do(config):
    model = torch.nn.Linear(4, 3)
    pairs = [(model, build_model_optimizer(config, model))]

    for step in range(3):
        for copied, optimizer in pairs:
            for parameter in copied.parameters():
                parameter.grad = torch.arange(1.0, 1.0 + parameter.numel()).reshape(parameter.shape)
            optimizer.step()
        if not step:
            pairs.append(copy.deepcopy(pairs[0]))

    weights = [copied.state_dict() for copied, _ in pairs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
