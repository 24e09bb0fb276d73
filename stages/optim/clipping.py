"""How far gradients may go, as params say it. Norms are L2."""

from typing import Annotated, Literal

from pydantic import Field

from stages.contracts.config import Config
from stages.contracts.fields import Positive


class ClipByValue(Config):
    """No element beyond ±``value``. Burn's ``Value``."""

    kind: Literal["value"] = "value"
    value: Positive


class ClipByNorm(Config):
    """No parameter's gradient longer than ``max_norm``, each by itself. Burn's ``Norm``."""

    kind: Literal["norm"] = "norm"
    max_norm: Positive


class ClipByGlobalNorm(Config):
    """All gradients together no longer than ``max_norm``, their direction kept. Pascanu et al., 2013."""

    kind: Literal["global_norm"] = "global_norm"
    max_norm: Positive


Clipping = Annotated[ClipByValue | ClipByNorm | ClipByGlobalNorm, Field(discriminator="kind")]
