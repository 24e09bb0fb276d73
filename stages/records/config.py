"""A recorder as params may name it: ``default``, or ``{kind: named_mpk_gz, precision: half}``."""

from typing import Any, Literal

from pydantic import model_validator

from stages.contracts.config import Config

Precisions = Literal["full", "half", "double"]


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
    compression: Literal[0, 1] = 1
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
    def precision_name(self) -> Precisions:
        """The precision that is meant."""
        return self.precision or ("half" if self.kind == "compact" else "full")
