"""Configuration of a recorder: ``default``, or ``{kind: named_mpk_gz, precision: half}``."""

from pathlib import Path
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
"""Suffix of each of `FORMATS`."""


class RecorderConfig(Config):
    """The format in which state is written to files.

    As in Burn, ``default`` is ``named_mpk_gz`` in full precision and ``compact`` the same in half precision.
    """

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
    """File format, which also determines the suffix:

    * ``default``: an alias of ``named_mpk_gz``
    * ``compact``: ``named_mpk_gz`` with ``precision: half``
    * ``named_mpk_gz`` and ``named_mpk``: MessagePack with names, gzipped or uncompressed
    * ``bin_gz`` and ``bin``: bincode, gzipped or uncompressed
    * ``json_gz`` and ``pretty_json``: JSON, gzipped or indented
    * ``burnpack``: Burn's own tensor format
    * ``safetensors``: the format of the safetensors package, with Burn's names and axes
    """
    precision: Precisions | None = None
    """Precision of floats and integers in the file: 32 (``full``), 16 (``half``) or 64 bits (``double``).

    null: the default of ``kind``, half for ``compact``, full for all others.
    """
    compression: Annotated[int, integer(0, 1)] = 1
    """Compression of gzipped formats: 1, or 0 to store (faster than torch.save, files a tenth larger)."""

    @model_validator(mode="before")
    @classmethod
    def _expand_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def format_name(self) -> str:
        """Return the format's key in `FORMATS`."""
        return "named_mpk_gz" if self.kind in {"default", "compact"} else self.kind

    @property
    def suffix(self) -> str:
        """Return the suffix of the files that the recorder writes."""
        return SUFFIXES[self.format_name]

    def rename(self, path: Path) -> Path:
        """Return *path* with the suffix of the recorder's files in place of its own."""
        suffixes = [suffix for suffix in SUFFIXES.values() if path.name.endswith(suffix)]
        stem = path.name.removesuffix(suffixes[0]) if suffixes else path.stem
        return path.with_name(stem + self.suffix)

    @property
    def precision_name(self) -> Precisions:
        """Return the selected precision, or the default of ``kind``."""
        return self.precision or ("half" if self.kind == "compact" else "full")
