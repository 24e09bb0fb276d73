"""An optimizer resumes from its record and supplement exactly as an uninterrupted one."""

import copy

import pytest
import torch
from host_synchronization import CountSynchronizations
from long_tests import covering_cases
from torch import nn

from stages.contracts.errors import RecordError
from stages.optim import Muon, build_optimizer
from stages.records import BurnpackRecorder, read_item, to_021
from stages.records.dotted_names import decode_param_id
from stages.records.precision import FullPrecision
from stages.records.record_tree import Map, RawTensor, Variant, strip_type_hints
from stages.records.tensors import from_raw
from stages.records.torch_layouts.module_record import record_of, skeleton_of
from stages.records.torch_layouts.optimizer_record import (
    load_burn_optimizer,
    optimizer_record,
    optimizer_supplement,
    restore_optimizer,
)
from stages.records.torch_layouts.skeleton import slots
from stages.records.torch_layouts.state_dict import load_into

optim = torch.optim


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """Matrices that Burn stores transposed, gates in one tensor, a convolution and a tied weight."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 2)
        self.rnn = nn.GRU(3, 2, batch_first=True)
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight

    def forward(self, x):
        hidden = self.rnn(self.conv(x).transpose(1, 2))[0]
        return self.two(self.one(hidden)).square().mean()


def build_net(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return Net().to(dtype)


def train(module, optimizer, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        loss = module(torch.randn(4, 1, 5, generator=generator).to(module.one.weight.dtype))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(lambda loss=loss: loss) if isinstance(optimizer, optim.LBFGS) else optimizer.step()


def through_a_file(node):
    """Return *node* as a full-precision file with names returns it: lists for tuples, bytes copied."""
    if isinstance(node, RawTensor):
        there = FullPrecision.convert(node)
        return RawTensor.of(there.dtype, there.shape, bytearray(there.data()))
    if isinstance(node, torch.Tensor):
        return node.clone()
    if isinstance(node, dict):
        assert all(isinstance(key, str) for key in node)
        return {key: through_a_file(value) for key, value in node.items()}
    return [through_a_file(value) for value in node] if isinstance(node, list) else node


def same(one, two):
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.device, one.stride()) == (two.dtype, two.device, two.stride()) and torch.equal(
            one, two
        )
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(value, two[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return type(one) is type(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


def muon(parameters):
    """Return the learner's Muon: AdamW trains what is not a matrix."""
    return build_optimizer(Muon(learning_rate=0.1), parameters)


OPTIMIZERS = {
    "adam": lambda p: optim.Adam(p, 0.1, betas=(0.8, 0.9)),
    "adam amsgrad": lambda p: optim.Adam(p, 0.1, amsgrad=True, weight_decay=0.1),
    "adam fused": lambda p: optim.Adam(p, 0.1, fused=True),
    "adam foreach": lambda p: optim.Adam(p, 0.1, foreach=True),
    "adam tensor rate": lambda p: optim.Adam(p, torch.tensor(0.1)),
    "adamw": lambda p: optim.AdamW(p, 0.1),
    "adamw amsgrad": lambda p: optim.AdamW(p, 0.1, amsgrad=True, fused=True),
    "sgd": lambda p: optim.SGD(p, 0.1),
    "sgd momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "sgd fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "rmsprop": lambda p: optim.RMSprop(p, 0.1),
    "rmsprop centered": lambda p: optim.RMSprop(p, 0.1, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1),
    "adagrad fused": lambda p: optim.Adagrad(p, 0.1, initial_accumulator_value=0.5, fused=True),
    "muon": muon,
    "nadam": lambda p: optim.NAdam(p, 0.1),
    "lbfgs": lambda p: optim.LBFGS(p, 0.1),
    "adadelta": lambda p: optim.Adadelta(p, 0.1),
}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    covering_cases([*OPTIMIZERS], [torch.float32, torch.float64, torch.bfloat16], strength=1),
)
def test_resumed_optimizer_equals_uninterrupted_one_bit_for_bit(kind, dtype):
    module = build_net(dtype=dtype)
    optimizer = OPTIMIZERS[kind](module.parameters())
    train(module, optimizer, 3)

    other = build_net(seed=1, dtype=dtype)
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    resumed = OPTIMIZERS[kind](other.parameters())
    record, left = optimizer_record(optimizer, module), optimizer_supplement(optimizer, module)
    restore_optimizer(resumed, other, through_a_file(strip_type_hints(record)), through_a_file(left))

    assert same(resumed.state_dict(), optimizer.state_dict())
    train(module, optimizer, 3, first=3)
    train(other, resumed, 3, first=3)
    assert same(dict(other.state_dict()), dict(module.state_dict()))


def test_new_optimizer_is_restored():
    module, other = build_net(), build_net()
    optimizer = optim.Adam(module.parameters(), 0.5)
    resumed = optim.Adam(other.parameters(), 0.1)
    record, supplement = optimizer_record(optimizer, module), optimizer_supplement(optimizer, module)
    restore_optimizer(resumed, other, record, supplement)

    assert same(resumed.state_dict(), optimizer.state_dict())


def entry(optimizer, module, path):
    """Return the state of the parameter at *path* in the record."""
    ids = {there: slot.id for there, slot in slots(skeleton_of(module))}
    return optimizer_record(optimizer, module)[ids[path]]


BURN = {
    "adam": {"momentum": {"time": 3, "moment_1": "exp_avg", "moment_2": "exp_avg_sq", "max_moment_2": None}},
    "adamw amsgrad": {
        "momentum": {
            "time": 3,
            "moment_1": "exp_avg",
            "moment_2": "exp_avg_sq",
            "max_moment_2": "max_exp_avg_sq",
        }
    },
    "sgd momentum": {"momentum": {"velocity": "momentum_buffer"}},
    "rmsprop": {
        "square_avg": {"square_avg": "square_avg"},
        "centered": {"grad_avg": None, "avg": "square_avg"},
        "momentum": None,
    },
    "adagrad": {"lr_decay": {"time": 3, "sum": "sum"}},
}


@pytest.mark.parametrize("kind", BURN)
def test_state_of_parameter_has_fields_of_burn(kind):
    module = build_net()
    optimizer = OPTIMIZERS[kind](module.parameters())
    train(module, optimizer, 3)
    state = optimizer.state[module.one.weight]

    def matches(node, expected):
        if isinstance(expected, dict):
            return list(node) == list(expected) and all(matches(node[key], expected[key]) for key in expected)
        return (
            torch.equal(from_raw(node), state[expected].t())
            if isinstance(expected, str)
            else node == expected
        )

    found = entry(optimizer, module, "one.weight")
    assert isinstance(optimizer_record(optimizer, module), Map)
    assert (found.name, found.index, found.value.name, found.value.index) == ("V1", 0, "Rank2", 2)
    assert matches(strip_type_hints(found.value.value), BURN[kind])


def test_moments_are_split_like_their_parameters():
    module = build_net()
    optimizer = optim.Adam(module.parameters())
    train(module, optimizer, 2)
    reset = strip_type_hints(entry(optimizer, module, "rnn.reset_gate.input_transform.bias"))["V1"]["Rank1"][
        "momentum"
    ]

    assert torch.equal(from_raw(reset["moment_1"]), optimizer.state[module.rnn.bias_ih_l0]["exp_avg"][:2])
    assert isinstance(entry(optimizer, module, "conv.weight"), Variant)
    assert entry(optimizer, module, "conv.weight").value.name == "Rank3"


def test_average_of_centered_rmsprop_is_its_divisor():
    module = build_net()
    optimizer = optim.RMSprop(module.parameters(), 0.1, centered=True)
    train(module, optimizer, 2)
    state = optimizer.state[module.two.bias]
    centered = strip_type_hints(entry(optimizer, module, "two.bias"))["V1"]["Rank1"]["centered"]

    assert torch.equal(from_raw(centered["avg"]), state["square_avg"] - state["grad_avg"] * state["grad_avg"])


def test_optimizer_unknown_to_burn_has_no_record():
    module = build_net()

    assert optimizer_record(optim.NAdam(module.parameters()), module) is None


def test_parameter_without_gradient_has_no_entry_and_no_state():
    module, other = build_net(), build_net()
    module.conv.requires_grad_(False)
    optimizer, resumed = optim.Adam(module.parameters()), optim.Adam(other.parameters())
    train(module, optimizer, 1)
    record, left = optimizer_record(optimizer, module), optimizer_supplement(optimizer, module)
    restore_optimizer(resumed, other, record, left)

    assert not resumed.state.get(other.conv.weight)
    assert len(record) == len(list(slots(skeleton_of(module)))) - 2


def test_parameter_outside_module_is_restored():
    def build():
        torch.manual_seed(0)
        module, outside = build_net(), nn.Parameter(torch.ones(2))
        outside.grad = torch.ones(2)
        return module, optim.Adam([*module.parameters(), outside])

    (module, optimizer), (other, resumed) = build(), build()
    optimizer.step()
    record, supplement = optimizer_record(optimizer, module), optimizer_supplement(optimizer, module)
    restore_optimizer(resumed, other, record, supplement)

    assert same(resumed.state_dict(), optimizer.state_dict())


def test_restored_moments_have_strides_of_their_parameter():
    module = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    optimizer = optim.Adam(module.parameters())
    module(torch.ones(1, 2, 3, 3)).sum().backward()
    optimizer.step()
    record, left = optimizer_record(optimizer, module), optimizer_supplement(optimizer, module)
    resumed = optim.Adam(module.parameters())
    restore_optimizer(resumed, module, through_a_file(strip_type_hints(record)), left)

    assert same(resumed.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record, rest: rest.update(optimizer="SGD"), "is that of SGD"),
        (lambda record, rest: rest.update(sizes=[99]), "groups of"),
        (lambda record, rest: record.clear(), "expected V1"),
        (
            lambda record, rest: record.update({key: {"V1": {"Rank1": {"x": 1}}} for key in record}),
            "expected",
        ),
        (lambda record, rest: record.update(dict.fromkeys(record, next(iter(record.values())))), "shape"),
    ],
)
def test_state_of_other_optimizer_is_refused_and_changes_nothing(change, message):
    module = build_net()
    optimizer = optim.Adam(module.parameters())
    train(module, optimizer, 2)
    record = through_a_file(strip_type_hints(optimizer_record(optimizer, module)))
    left = optimizer_supplement(optimizer, module)
    before = copy.deepcopy(optimizer.state_dict())
    change(record, left)

    with pytest.raises(RecordError, match=message):
        restore_optimizer(optimizer, module, record, left)
    assert same(optimizer.state_dict(), before)


def with_other_ids(model, record):
    """Return both records with random ids, as Burn draws them."""
    ids = {}

    def renamed(node):
        if isinstance(node, dict):
            build = {key: renamed(value) for key, value in node.items()}
            if "id" in build:
                build["id"] = ids.setdefault(build["id"], f"{len(ids):013d}")
            return build
        return [renamed(value) for value in node] if isinstance(node, list) else node

    model = renamed(model)
    return model, {ids[key]: value for key, value in record.items()}


@pytest.mark.parametrize("kind", ["adam", "adam fused", "adamw amsgrad", "sgd momentum", "adagrad"])
def test_optimizer_resumes_from_record_of_burn_alone(kind):
    module = build_net()
    optimizer = OPTIMIZERS[kind](module.parameters())
    train(module, optimizer, 3)
    model, record = with_other_ids(
        strip_type_hints(record_of(module)), strip_type_hints(optimizer_record(optimizer, module))
    )

    other = build_net(seed=1)
    resumed = OPTIMIZERS[kind](other.parameters())
    load_into(other, model)
    without = load_burn_optimizer(resumed, other, through_a_file(record), model)

    assert without == []
    assert same(resumed.state_dict(), optimizer.state_dict())


def in_layout_of_022(record):
    """Return *record*, of Burn 0.21, in the layout of 0.22, in which a tensor has the parameter's id."""

    def with_ids(node, key):
        if isinstance(node, dict):
            return {name: with_ids(field, key) for name, field in node.items() if field is not None}
        return {"id": key, "param": node} if isinstance(node, RawTensor) else node

    entries = {}
    for key, entry in record.items():
        [(rank, state)] = entry["V1"].items()
        entries[str(decode_param_id(key))] = {**with_ids(state, key), "__rank": int(rank[-1])}
    return entries


@pytest.mark.parametrize("kind", ["adam", "adamw amsgrad", "sgd momentum", "adagrad"])
def test_optimizer_resumes_from_a_file_of_burn_022(kind, tmp_path):
    module = build_net()
    optimizer = OPTIMIZERS[kind](module.parameters())
    train(module, optimizer, 3)
    record = strip_type_hints(optimizer_record(optimizer, module))
    path = BurnpackRecorder().record(in_layout_of_022(record), tmp_path / "optim")
    resumed = OPTIMIZERS[kind](module.parameters())

    without = load_burn_optimizer(
        resumed, module, read_item(path), strip_type_hints(record_of(module)), source="optim.bpk"
    )

    assert without == []
    assert same(resumed.state_dict(), optimizer.state_dict())


def test_parameters_that_record_of_burn_lacks_are_returned():
    module = build_net()
    optimizer = optim.RMSprop(module.parameters(), momentum=0.9)
    train(module, optimizer, 2)
    model, record = with_other_ids(
        strip_type_hints(record_of(module)), strip_type_hints(optimizer_record(optimizer, module))
    )
    del record[model["conv"]["bias"]["id"]]
    resumed = optim.RMSprop(module.parameters(), momentum=0.9)

    assert load_burn_optimizer(resumed, module, record, model) == ["conv.bias"]
    assert resumed.state[module.one.bias]["step"] == 0
    assert module.conv.bias not in resumed.state


def test_loading_burn_record_into_unsupported_optimizer_is_refused():
    module = build_net()

    with pytest.raises(RecordError, match="Burn has no NAdam"):
        load_burn_optimizer(optim.NAdam(module.parameters()), module, {}, {}, source="optim.mpk")


def test_velocity_of_muon_record_is_sum_of_gradients():
    module = build_net()
    optimizer = muon(module.parameters())
    train(module, optimizer, 3)
    buffer = optimizer.state[module.one.weight]["momentum_buffer"]

    record = strip_type_hints(to_021(optimizer_record(optimizer, module)))
    velocity = strip_type_hints(entry(optimizer, module, "one.weight"))["V1"]["Rank2"]["momentum"]["velocity"]

    torch.testing.assert_close(from_raw(velocity), buffer.t() / (1 - 0.95))
    assert {key for state in record.values() for key in state["V1"]} == {"Rank2"}


@pytest.mark.parametrize(
    "record", [{}, {"o5sfrk0319cki": {"V1": {"Rank1": {}}}}], ids=["empty", "of another model"]
)
def test_record_of_which_nothing_fits_is_refused(record):
    module = build_net()
    optimizer = optim.Adam(module.parameters())
    train(module, optimizer, 2)
    before = copy.deepcopy(optimizer.state_dict())
    model = strip_type_hints(record_of(module))

    with pytest.raises(RecordError, match=r"optim\.mpk lacks the state of all \d+ parameters"):
        load_burn_optimizer(optimizer, module, record, model, source="optim.mpk")

    assert same(optimizer.state_dict(), before)


def test_plain_sgd_lacks_nothing():
    module = build_net()
    optimizer = optim.SGD(module.parameters())

    assert load_burn_optimizer(optimizer, module, {}, strip_type_hints(record_of(module))) == []


def test_muon_resumes_from_record_of_burn_alone():
    module = build_net()
    optimizer = muon(module.parameters())
    train(module, optimizer, 3)
    model, record = with_other_ids(
        strip_type_hints(record_of(module)), strip_type_hints(to_021(optimizer_record(optimizer, module)))
    )
    resumed = muon(module.parameters())

    without = load_burn_optimizer(resumed, module, through_a_file(record), model)

    assert "conv.bias" in without
    for matrix in (module.one.weight, module.rnn.weight_ih_l0):
        torch.testing.assert_close(resumed.state[matrix], optimizer.state[matrix])


class Untied(nn.Sequential):
    """Linear layers, whose weights Burn stores transposed."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))


def descend(module, optimizer, steps):
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))

    def closure():
        optimizer.zero_grad()
        loss = (module(inputs) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def test_lbfgs_record_has_fields_order_and_axes_of_burn():
    module = Untied()
    optimizer = optim.LBFGS(module.parameters(), 0.1, max_iter=4)
    descend(module, optimizer, 2)
    state = optimizer.state[module[0].weight]

    record = strip_type_hints(optimizer_record(optimizer, module))

    fields = ["history_s", "history_y", "d", "t", "prev_flat_grad", "prev_loss", "g_iter"]
    assert list(record) == fields
    assert (record["t"], record["g_iter"]) == (state["t"], state["n_iter"])
    assert torch.equal(from_raw(record["d"])[:15], state["d"][:15].view(3, 5).t().reshape(-1))
    assert torch.equal(from_raw(record["history_s"][-1])[15:18], state["old_stps"][-1][15:18])
    assert torch.equal(from_raw(record["history_y"][0])[15:18], state["old_dirs"][0][15:18])


def test_lbfgs_resumes_from_record_of_burn_alone():
    module, other = Untied(), Untied()
    optimizer, resumed = (optim.LBFGS(each.parameters(), 0.1, max_iter=4) for each in (module, other))
    descend(module, optimizer, 2)
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    record = through_a_file(strip_type_hints(optimizer_record(optimizer, module)))

    assert load_burn_optimizer(resumed, other, record, strip_type_hints(record_of(module))) == []
    descend(module, optimizer, 2)
    descend(other, resumed, 2)
    torch.testing.assert_close(dict(other.state_dict()), dict(module.state_dict()))


@pytest.mark.parametrize("change", [{"g_iter": None}, {"extra": 1}, {"history_s": [], "d": "text"}])
def test_lbfgs_refuses_other_record(change):
    module = Untied()
    optimizer = optim.LBFGS(module.parameters(), 0.1)
    descend(module, optimizer, 1)
    record = {**through_a_file(strip_type_hints(optimizer_record(optimizer, module))), **change}

    with pytest.raises(RecordError, match="the optimizer's record"):
        load_burn_optimizer(optimizer, module, record, {})


def test_counters_on_a_device_are_read_in_one_transfer():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(40)))
    optimizer = optim.AdamW(net.parameters(), fused=True)
    for parameter in net.parameters():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.ones((), device="meta"), **moments}

    with CountSynchronizations() as counter:
        record = optimizer_record(optimizer, net)
        with pytest.raises(RecordError, match=r"AdamW\['step'\] is a tensor on the meta device"):
            optimizer_supplement(optimizer, net)

    assert counter.counts == {"device to host": 2}  # one for the record, one for the supplement
    assert len(record) == 80
