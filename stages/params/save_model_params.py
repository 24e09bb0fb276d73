"""Config and paths of the stage save-model."""

from dataclasses import dataclass
from operator import not_
from pathlib import Path
from typing import Literal

from pydantic import Field

from stages.contracts.config import Config
from stages.contracts.errors import ParamsError
from stages.contracts.fields import OPTIONAL, Flag, Text
from stages.contracts.plugins import check_extra
from stages.records.config import RecorderConfig
from stages.runs.retention import BestConfig


class SaveModelConfig(Config):
    """The section ``save_model``."""

    recorder: RecorderConfig = RecorderConfig()
    """Burn's format of the model: ``default`` keeps 32-bit floats, ``compact`` rounds them to 16 bits.

    A file of ``safetensors`` has Burn's names and axes; for PyTorch, set ``exports: [safetensors]``.
    """
    exports: tuple[Literal["safetensors", "burnpack", "onnx", "pt2", "model_card"], ...] = ()
    """Further files of the model:

    * ``safetensors``: the weights with PyTorch's names and axes; ``burnpack``: with Burn's
    * ``onnx`` and ``pt2``: a program of ONNX or of `torch.export` for batches of any size. It is run on the
      test split before it is written, and must have the outputs and the metrics of the model
    * ``model_card``: a ``README.md`` with the data, the metrics and the params, for the Hugging Face hub
    """
    preprocess: Flag = Field(default=False, exclude_if=not_)
    """Whether ``onnx`` and ``pt2`` normalize their inputs, which are then those of the source as float32."""
    license: Text | None = OPTIONAL
    """The license in the model card, in the hub's notation, such as ``apache-2.0``."""
    epoch: Literal["last", "best"] = "last"
    """``last``, or ``best``: the epoch with the lowest validation loss, or that of the metric in ``best``."""
    best: BestConfig | None = None
    """The metric of the best epoch, which ``fit.keep.best`` must keep; null: the validation loss."""
    weights: Literal["averaged", "raw"] = "averaged"
    """``averaged``: the average of ``fit.averaging``, which the validation measured, or the weights of the
    training in a run without one; ``raw``: the weights of the training."""

    @property
    def best_rule(self) -> BestConfig:
        """The metric of the best epoch."""
        return self.best or BestConfig()

    @property
    def note(self) -> str | None:
        """A remark on the files that the section asks for, if PyTorch cannot load the model."""
        if self.recorder.kind != "safetensors" or "safetensors" in self.exports:
            return None
        return (
            "note: save_model.recorder: safetensors writes Burn's names and axes, so PyTorch would load each "
            "Linear transposed. For PyTorch, set save_model.exports: [safetensors]"
        )

    def check_packages(self) -> None:
        """Raise `PluginError` if a package is not installed that an export needs."""
        for package in ("onnx", "onnxscript", "onnxruntime") if "onnx" in self.exports else ():
            check_extra(package, "onnx", "save_model.exports: onnx")

    def check_suffix(self, model: Path) -> None:
        """Raise `ParamsError` unless the name of the file *model* ends as the recorder's files do."""
        if not model.name.endswith(self.recorder.suffix):
            raise ParamsError(
                f"save_model.recorder: {self.recorder.kind!r} writes files that end in "
                f"{self.recorder.suffix}; found vars.paths.model: {model} in dvc.yaml. Set that to "
                f"{self.recorder.rename(model)}, or choose another recorder"
            )


@dataclass(frozen=True)
class SaveModelPaths:
    """The paths that the stage reads and writes.

    The last three have no effect if the data has no test split, and a dvc.yaml may lack them.
    """

    checkpoint: Path
    config: Path
    model: Path
    exports: Path
    learner: Path | None = None
    """The directory that build-learner wrote."""
    data: Path | None = None
    test: Path | None = None
    """A directory for the logs and the metrics of the test split."""
