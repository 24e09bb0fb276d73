"""Configuration of models. The arguments that depend on the data (shape, classes) come from build-learner."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stages.contracts.config import Config, Use, select_by_kind
from stages.contracts.fields import Decay, Units
from stages.contracts.plugins import name_validator

BUILT_IN = {
    "cnn": "stages.models.cnn:Cnn",
    "mlp": "stages.models.mlp:Mlp",
    "mlp_regressor": "stages.models.mlp:MlpRegressor",
    "unet": "stages.models.unet:UNet",
}


class CnnConfig(Config):
    """The network of the Burn book's guide: two convolutions, an adaptive pool, two linear layers."""

    kind: Literal["cnn"] = "cnn"
    channels: tuple[Units, Units] = (8, 16)
    """The output channels of the two convolutions."""
    kernel_size: Units = 3
    pool_size: Units = 8
    """The height and width after the pool, for images of any size."""
    hidden_size: Units = 512
    dropout: Decay = 0.5


class MlpConfig(Config):
    """Linear layers with ReLU between them, for classification."""

    kind: Literal["mlp"]
    hidden_sizes: tuple[Units, ...] = (64,)
    dropout: Decay = 0.0


class MlpRegressorConfig(Config):
    """Linear layers with ReLU between them, for regression."""

    kind: Literal["mlp_regressor"]
    hidden_sizes: tuple[Units, ...] = (64,)
    dropout: Decay = 0.0


class UNetConfig(Config):
    """A U-Net for masks: a class for each pixel of images."""

    kind: Literal["unet"]
    channels: tuple[Units, ...] = Field(default=(16, 32, 64), min_length=1)
    """The channels of each level; each after the first halves the height and the width."""


ModelConfig = Annotated[
    CnnConfig
    | MlpConfig
    | MlpRegressorConfig
    | UNetConfig
    | Annotated[Use, AfterValidator(name_validator("model", BUILT_IN))],
    select_by_kind(BUILT_IN),
]
