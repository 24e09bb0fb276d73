"""Records of optimizers and schedules of Burn 0.22, which writes them as burnpack."""

import pytest
import torch
from burn_files import BURN_022, import_file, needs_files

from stages.contracts.errors import RecordError
from stages.optim import (
    AdaGrad,
    Adam,
    AdamW,
    Adan,
    Composed,
    Constant,
    Cosine,
    Lamb,
    Lbfgs,
    Linear,
    Lion,
    Muon,
    Noam,
    RmsProp,
    Scheduler,
    Sequential,
    Sgd,
    Step,
    Stepper,
    build_model_optimizer,
    load_burn_schedule,
)
from stages.records import (
    BurnpackRecorder,
    NamedMpkFileRecorder,
    formats,
    load_burn_optimizer,
    load_into,
    optimizer_record,
    read_item,
    record_of,
)
from stages.records.dotted_names import decode_param_id, derive_param_id, flatten
from stages.records.record_tree import RawTensor, Signed

KINDS = {Signed: "Int", int: "UInt", float: "Float"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, batch):
        return self.fc(batch)


def train(config, model, steps=2):
    optimizer = build_model_optimizer(config, model)
    stepper = Stepper(list(model.parameters()), optimizer)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        gradients = [torch.randn(weight.shape, generator=generator) for weight in model.parameters()]
        if isinstance(config, Lbfgs):
            stepper.step_with_closure(lambda: (torch.zeros(()), gradients), 0.1)  # noqa: B023
        else:
            stepper.step(gradients, 0.1)
    return optimizer


def layout_of(path):
    """Return the dtype or the kind of each value in the file at *path*, with paths in place of ids."""
    record = formats.read(path)
    paths = record.extra or {}

    def kind_of(leaf):
        leaf = leaf["param"] if isinstance(leaf, dict) else leaf
        return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, RawTensor) else KINDS[type(leaf)]

    leaves = [(name.partition("."), kind_of(leaf)) for name, leaf in flatten(record.item)]
    return {f"{paths.get(first, first)}.{rest}": kind for (first, _, rest), kind in leaves}


BIAS, WEIGHT, RANKS = "F32 [2]", "F32 [3, 2]", {"fc.weight.__rank": "UInt", "fc.bias.__rank": "UInt"}


def entries(*fields, time=None):
    """Return the layout of an optimizer with the tensors *fields* and the counter *time*."""
    shapes = {"fc.weight": WEIGHT, "fc.bias": BIAS}
    tensors = {f"{path}.{field}": shape for path, shape in shapes.items() for field in fields}
    return RANKS | tensors | ({f"{path}.{time}": "UInt" for path in shapes} if time else {})


OPTIMIZERS = {
    "adam": (
        Adam(amsgrad=True),
        entries("momentum.moment_1", "momentum.moment_2", "momentum.max_moment_2", time="momentum.time"),
    ),
    "sgd": (Sgd(momentum=0.9), entries("momentum.velocity")),
    "rmsprop": (
        RmsProp(centered=True),
        entries("square_avg.square_avg", "centered.avg", "centered.grad_avg", "momentum.buf"),
    ),
    "adagrad": (AdaGrad(), entries("lr_decay.sum", time="lr_decay.time")),
    "adamw": (
        AdamW(cautious_weight_decay=True),
        entries("momentum.moment_1", "momentum.moment_2", time="momentum.time"),
    ),
    "adan": (
        Adan(),
        entries(
            *(f"momentum.{name}" for name in ("exp_avg", "exp_avg_sq", "exp_avg_diff", "neg_pre_grad")),
            time="momentum.time",
        ),
    ),
    "lion": (Lion(), RANKS | {"fc.weight.momentum": WEIGHT, "fc.bias.momentum": BIAS}),
    "lamb": (Lamb(), entries("moment_1", "moment_2", time="time")),
    "muon": (
        Muon(),
        RANKS
        | {"fc.weight.momentum.velocity": WEIGHT, "fc.bias.momentum.time": "UInt"}
        | {f"fc.bias.momentum.moment_{number}": BIAS for number in (1, 2)},
    ),
    "lbfgs": (
        Lbfgs(max_iter=1),
        {f"history_{name}.{index}": "F32 [8]" for name in "sy" for index in ("0",)}
        | {"history_s.len": "UInt", "history_y.len": "UInt", "g_iter.": "UInt", "t.": "Float"}
        | {"prev_loss.": "Float", "d.": "F32 [8]", "prev_flat_grad.": "F32 [8]"},
    ),
}


@pytest.mark.parametrize(("config", "layout"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_state_of_an_optimizer_has_the_names_and_kinds_of_022(config, layout, tmp_path):
    model = Net()
    optimizer = train(config, model)

    path = BurnpackRecorder().record(optimizer_record(optimizer, model), tmp_path / "optim")

    assert layout_of(path) == layout
    again = BurnpackRecorder().record(read_item(path), tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()
    resumed = build_model_optimizer(config, model)
    assert load_burn_optimizer(resumed, model, read_item(path), record_of(model)) == []


def train_adafactor(model):
    optimizer = torch.optim.Adafactor(model.parameters())
    for scale in (1.0, 0.5):
        for parameter in model.parameters():
            parameter.grad = torch.linspace(-1, scale, parameter.numel()).reshape(parameter.shape)
        optimizer.step()
    return optimizer


def test_factors_of_adafactor_swap_for_a_transposed_weight(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Conv2d(2, 3, 2, bias=False))
    optimizer = train_adafactor(model)

    path = BurnpackRecorder().record(optimizer_record(optimizer, model), tmp_path / "optim")

    factors = {"second_moment": ("0.weight", [3, 1]), "column_second_moment": ("0.weight", [1, 2])}
    expected = {f"{owner}.{name}": f"F32 {shape}" for name, (owner, shape) in factors.items()}
    expected |= {"0.bias.second_moment": BIAS}
    expected |= {
        "1.weight.second_moment": "F32 [3, 2, 2, 1]",
        "1.weight.column_second_moment": "F32 [3, 2, 1, 2]",
    }
    expected |= {
        f"{owner}.{name}": "UInt"
        for owner in ("0.weight", "0.bias", "1.weight")
        for name in ("__rank", "time")
    }
    assert layout_of(path) == expected
    resumed = torch.optim.Adafactor(model.parameters())
    assert load_burn_optimizer(resumed, model, read_item(path), record_of(model)) == []
    torch.testing.assert_close(resumed.state_dict()["state"], optimizer.state_dict()["state"], rtol=0, atol=0)


def test_adafactor_of_joined_matrices_lacks_their_factors(tmp_path):
    model = torch.nn.MultiheadAttention(4, 2)
    optimizer = train_adafactor(model)

    path = BurnpackRecorder().record(optimizer_record(optimizer, model), tmp_path / "optim")

    resumed = torch.optim.Adafactor(model.parameters())
    parts = ["query.weight", "key.weight", "value.weight"]
    assert not {*parts} & {*formats.read(path).extra.values()}
    assert load_burn_optimizer(resumed, model, read_item(path), record_of(model)) == parts
    for name in ("in_proj_bias", "out_proj.weight"):
        parameter = model.get_parameter(name)
        torch.testing.assert_close(resumed.state[parameter], optimizer.state[parameter], rtol=0, atol=0)


def test_ids_of_an_optimizer_are_those_of_the_model(tmp_path):
    model = Net()
    item = optimizer_record(train(Adam(), model), model)

    path = BurnpackRecorder().record(item, tmp_path / "optim")

    numbers = {str(decode_param_id(derive_param_id(name))): name for name in ("fc.weight", "fc.bias")}
    assert formats.read(path).extra == numbers


def test_entries_of_groups_are_left_out_of_formats_of_021(tmp_path):
    model = Net()
    item = optimizer_record(train(Muon(), model), model)

    path = NamedMpkFileRecorder().record(item, tmp_path / "optim")

    assert [*read_item(path)] == [derive_param_id("fc.weight")]


PARTS = (Cosine(initial=1.0, num_iters=9), Constant(initial=0.5), Step(initial=0.1, step_size=2))
SCHEDULES = {
    "constant": (Constant(), {}),
    "linear": (Linear(final=0.1, num_iters=9), {"0.remaining_iters": 5}),
    "noam": (Noam(), {"0.step": 5.0}),
    "step": (Step(step_size=2), {"0.iter_idx": Signed(4)}),
    "composed": (Composed(schedulers=PARTS), {"0.0.current_iter": 4, "0.2.iter_idx": Signed(4)}),
    "sequential": (
        Sequential(schedulers=(Linear(final=0.1, num_iters=9), Noam()), milestones=(3,)),
        {"0.step": 5, "0.0.remaining_iters": 7, "0.1.step": 2.0},
    ),
}


@pytest.mark.parametrize(("rule", "scalars"), SCHEDULES.values(), ids=SCHEDULES)
def test_state_of_a_schedule_has_the_names_and_kinds_of_022(rule, scalars, tmp_path):
    scheduler, resumed = Scheduler(0.5, rule), Scheduler(0.5, rule)
    for _ in range(5):
        scheduler.step()

    path = BurnpackRecorder().record(scheduler.burn_state(), tmp_path / "scheduler")

    written = dict(flatten(formats.read(path).item))
    assert written == scalars
    assert [type(value) for value in written.values()] == [type(scalars[name]) for name in written]
    load_burn_schedule(resumed, read_item(path))
    assert resumed.step() == (0.5 if isinstance(rule, Constant) else scheduler.step())


def test_list_without_its_entries_is_refused(tmp_path):
    item = {"history_s": {"len": 2}, "history_y": {"len": 0}}
    path = BurnpackRecorder().record(item, tmp_path / "optim")

    with pytest.raises(RecordError, match=r"optim\.bpk, history_s has the entries len"):
        read_item(path)


@needs_files
@pytest.mark.parametrize("kind", ["optimizer", "schedule"])
def test_files_of_burn_continue_to_its_numbers_and_ours_have_their_layout(kind):
    module = import_file(BURN_022 / "check.py")

    for folder in sorted((BURN_022 / f"{kind}s").iterdir()):
        is_equal, text = getattr(module, f"check_{kind}")(folder)
        assert is_equal, f"{folder.name}: {text}"


def test_names_of_adapters_are_those_of_their_tensors(tmp_path):
    adapters = {"a": torch.ones(3, 1), "b": torch.ones(1, 2)}
    item = {"fc": {"weight": torch.ones(3, 2), "weight_lora": adapters, "other_lora": {"a": torch.ones(1)}}}

    path = BurnpackRecorder().record(item, tmp_path / "model")

    assert b"fc.weight.lora.a" in path.read_bytes()
    assert b"fc.other_lora.a" in path.read_bytes()
    assert read_item(path)["fc"].keys() == item["fc"].keys()
    with pytest.raises(RecordError, match=r"unexpected: .*weight_lora\.a"):
        load_into(Net(), read_item(path), layout="burn")


@needs_files
def test_files_of_burn_are_written_again_byte_for_byte(tmp_path):
    paths = (
        sorted(BURN_022.glob("*/*/*.bpk"))
        + sorted(BURN_022.glob("modules/*/*.bpk"))
        + sorted(BURN_022.glob("odd/*.bpk"))
    )

    for number, path in enumerate(paths):
        again = BurnpackRecorder().record(read_item(path), tmp_path / str(number))
        assert again.read_bytes() == path.read_bytes(), path
    assert len(paths) > 40
