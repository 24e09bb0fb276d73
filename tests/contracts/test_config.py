"""Configs as Burn's JSON."""

import math
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from stages.contracts.config import Config, Use, flatten
from stages.system.files import save_config

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


@pytest.mark.skipif(not BURN.exists(), reason="needs the files that Burn wrote, in ../shared/burn")
def test_config_of_burn_is_written_byte_for_byte(tmp_path):
    config = TrainingConfig.model_validate_json(BURN.read_bytes())
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


def test_config_keeps_the_order_and_the_kind_of_its_sections(tmp_path):
    save_config(EVERYTHING, tmp_path / "config.json")

    assert (tmp_path / "config.json").read_text().splitlines()[1:9] == [
        '  "optimizer": {',
        '    "kind": "sgd",',
        '    "rate": 0.1,',
        '    "momentum": 0.5',
        "  },",
        '  "metric": {',
        '    "kind": "my_lab:F1",',
        '    "classes": 3',
    ]


def test_any_pydantic_model_can_be_saved(tmp_path):
    class Plain(BaseModel):
        rate: float = 1

    save_config(Plain(rate=1e-5), tmp_path / "config.json")

    assert (tmp_path / "config.json").read_text() == '{\n  "rate": 0.00001\n}'


def test_flatten_keeps_an_empty_section_as_a_value():
    assert flatten({"fit": {"keep": {}, "seed": 1}}) == {"fit.keep": {}, "fit.seed": 1}
