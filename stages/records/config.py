"""A recorder as params may name it: ``default``, or ``{kind: named_mpk_gz, precision: half}``."""

from typing import Annotated, Any, Literal

from pydantic import model_validator

from stages.contracts.config import Config
from stages.contracts.fields import integer

Precisions = Literal["full", "half", "double"]

SUFFIXES = {
    "named_mpk_gz": ".mpk.gz",
    "named_mpk": ".mpk",
    "bin_gz": ".bin.gz",
    "bin": ".bin",
    "json_gz": ".json.gz",
    "pretty_json": ".json",
    "burnpack": ".bpk",
    "safetensors": ".safetensors",
}
"""The suffix of each of `FORMATS`, without the cost of importing them."""


class RecorderConfig(Config):
    """How state is written to files. Burn's names: ``default`` is ``named_mpk_gz``, ``compact`` its half."""

    kind: Literal[
        "default",
        "compact",
        "named_mpk_gz",
        "named_mpk",
        "bin_gz",
        "bin",
        "json_gz",
        "pretty_json",
        "burnpack",
        "safetensors",
    ] = "default"
    """The format, which is also the suffix of the files:

    * ``default``: another name of ``named_mpk_gz``
    * ``compact``: ``named_mpk_gz`` with ``precision: half``
    * ``named_mpk_gz`` and ``named_mpk``: MessagePack with names, gzipped or not
    * ``bin_gz`` and ``bin``: bincode, gzipped or not
    * ``json_gz`` and ``pretty_json``: JSON, gzipped or indented
    * ``burnpack``: Burn's format of tensors
    * ``safetensors``: the format of the safetensors package
    """
    precision: Precisions | None = None
    """Of floats and integers in the file: 32 (``full``), 16 or 64 bits. None is what ``kind`` says: full."""
    compression: Annotated[int, integer(0, 1)] = 1
    """Of gzipped formats: 0 stores, which is faster than torch.save and a tenth larger than 1."""

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def format_name(self) -> str:
        """A key of `FORMATS`."""
        return "named_mpk_gz" if self.kind in {"default", "compact"} else self.kind

    @property
    def suffix(self) -> str:
        """The end of the name of a file that the recorder writes."""
        return SUFFIXES[self.format_name]

    @property
    def precision_name(self) -> Precisions:
        """The precision that is meant."""
        return self.precision or ("half" if self.kind == "compact" else "full")
