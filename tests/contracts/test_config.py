"""Configs as Burn's JSON."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from stages.contracts.config import Config, Use
from stages.contracts.config_file import config_text, load_config, save_config
from stages.contracts.errors import ParamsError

BURN = Path(__file__).parents[3] / "shared" / "burn" / "config.json"


class Norm(Config):
    Norm: float


class Clamp(Config):
    Value: float


class Decay(Config):
    penalty: float


class LstmConfig(Config):
    input_size: int
    hidden_size: int
    num_layers: int
    output_size: int
    dropout: float
    bidirectional: bool = False


class AdamConfig(Config):
    weight_decay: Decay | None = None
    grad_clipping: Norm | Clamp | None = None
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-5


class TrainingConfig(Config):
    model: LstmConfig
    optimizer: AdamConfig
    num_epochs: int = 30
    batch_size: int = 32
    num_workers: int = 2
    lr: float = 1e-3


@pytest.mark.skipif(not BURN.exists(), reason="Burn's own files lie beside the checkout, in shared/burn")
def test_a_file_that_burn_wrote_is_read_and_written_back_to_the_byte(tmp_path):
    config = load_config(TrainingConfig, BURN)
    save_config(config, tmp_path / "config.json")

    assert config.optimizer.grad_clipping == Norm(Norm=1.0)
    assert (tmp_path / "config.json").read_bytes() == BURN.read_bytes()


class Adam(Config):
    kind: Literal["adam"] = "adam"
    rate: float = 0.1


class Sgd(Config):
    kind: Literal["sgd"] = "sgd"
    rate: float = 0.1
    momentum: float | None = None


class Everything(Config):
    optimizer: Annotated[Adam | Sgd, Field(discriminator="kind")] = Adam()
    metric: Use = Use(kind="accuracy")
    layers: list[Annotated[Adam | Sgd, Field(discriminator="kind")]] = Field(default_factory=list)
    pair: tuple[int, Decay] = (1, Decay(penalty=2.0))
    by_name: dict[str, Decay] = Field(default_factory=dict)
    lam: float = Field(0.5, alias="lambda")
    where: Path = Path("a/b")


EVERYTHING = Everything(
    optimizer=Sgd(momentum=0.5),
    metric=Use(kind="my_lab:F1", classes=3),
    layers=[Adam(), Sgd(rate=1.0)],
    by_name={"a": Decay(penalty=math.inf)},
)


def test_every_kind_of_field_comes_back_as_it_was(tmp_path):
    save_config(EVERYTHING, tmp_path / "config.json")

    assert load_config(Everything, tmp_path / "config.json") == EVERYTHING


def test_a_config_keeps_its_kind_and_its_order():
    assert config_text(EVERYTHING).splitlines()[1:9] == [
        '  "optimizer": {',
        '    "kind": "sgd",',
        '    "rate": 0.1,',
        '    "momentum": 0.5',
        "  },",
        '  "metric": {',
        '    "kind": "my_lab:F1",',
        '    "classes": 3',
    ]


def without(data: Any, *path: Any) -> Any:
    """*data* with what stands at *path* left out."""
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return data


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (("optimizer", "momentum"), "optimizer.momentum"),
        (("optimizer", "kind"), "optimizer.kind"),
        (("layers", 1, "rate"), "layers.1.rate"),
        (("pair", 1, "penalty"), "pair.1.penalty"),
        (("by_name", "a", "penalty"), "by_name.a.penalty"),
        (("lambda",), "lambda"),
    ],
)
def test_a_field_must_be_there_even_if_it_has_a_default(path, missing, tmp_path):
    data = without(json.loads(config_text(EVERYTHING)), *path)
    (tmp_path / "config.json").write_text(json.dumps(data))

    with pytest.raises(ParamsError, match=r"config.json lacks fields of Everything") as caught:
        load_config(Everything, tmp_path / "config.json")

    assert f"\n  {missing}\n" in str(caught.value)


def test_all_that_is_missing_is_named_at_once(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"input_size": 1}, "optimizer": {}, "lr": 1}')

    with pytest.raises(ParamsError) as caught:
        load_config(TrainingConfig, tmp_path / "config.json")

    assert [line.strip() for line in str(caught.value).splitlines()[1:-1]] == [
        *("model." + name for name in list(LstmConfig.model_fields)[1:]),
        *("optimizer." + name for name in AdamConfig.model_fields),
        "num_epochs",
        "batch_size",
        "num_workers",
    ]


def test_unknown_keys_are_left_out_as_burn_does(tmp_path):
    data = json.loads(config_text(EVERYTHING))
    data["new"] = data["optimizer"]["new"] = data["layers"][0]["new"] = data["by_name"]["a"]["new"] = 1
    (tmp_path / "config.json").write_text(json.dumps(data))

    assert load_config(Everything, tmp_path / "config.json") == EVERYTHING


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.json cannot be read (No such file or directory): save a config there first"),
        ("{", "config.json is not JSON: Expecting property name"),
        ("[1]", "config.json holds '[1]', and a config is a map of fields"),
        (
            '{"rate": "fast", "kind": "adam"}',
            "config.json is no Adam:\n  rate: must be a valid number, unable to parse string",
        ),
    ],
)
def test_a_file_that_is_no_config_says_what_it_is(content, message, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(ParamsError) as caught:
        load_config(Adam, tmp_path / "config.json")

    assert message in str(caught.value)


def test_any_pydantic_model_is_a_config(tmp_path):
    class Plain(BaseModel):
        rate: float = 1

    save_config(Plain(rate=1e-5), tmp_path / "config.json")

    assert (tmp_path / "config.json").read_text() == '{\n  "rate": 0.00001\n}'
    assert load_config(Plain, tmp_path / "config.json") == Plain(rate=1e-5)
