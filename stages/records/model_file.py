"""A module's parameters as one file that Burn loads: Burn's ``module.save_file`` and ``module.load_file``."""

import logging
from pathlib import Path
from typing import TypeVar

from torch import nn

from stages.records.recorder import Recorder
from stages.records.torch_modules.module_record import fields_unlike_burn, record_of
from stages.records.torch_modules.state_dict import load_into

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)


def save_file(model: nn.Module, path: str | Path, recorder: Recorder) -> Path:
    """Write the record of *model* to *path* with the recorder's extension and return the name of the file.

    As in Burn, the extension replaces the one that *path* has, unless it is the recorder's already, and
    missing parent directories are created. The file appears when it is complete; until then an existing one
    stays as it is.

    >>> import tempfile
    >>> from stages.records import DefaultRecorder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(nn.Linear(4, 2), f"{folder}/model", DefaultRecorder()).name
    'model.mpk.gz'

    Raises:
        RecordError: If the model has a tensor that a record cannot hold.
    """
    for field in fields_unlike_burn(model):
        log.warning("Burn cannot load %s", field)
    return recorder.record(record_of(model), _with_extension(Path(path), recorder.suffix))


def load_file(model: Model, path: str | Path, recorder: Recorder, *, limit: int | None = None) -> Model:
    """Load the record at *path*, with the recorder's extension, into *model* and return *model*.

    Tensors are converted to the dtypes and devices of *model*; a file of any precision fits. *limit* raises
    how many bytes of content a file may have that compresses more than 100 times.

    Raises:
        RecordError: If there is no such file, or if it is not the record of such a model; *model* is
            unchanged then.
    """
    target = _with_extension(Path(path), recorder.suffix)
    item = recorder.load(target, record_of(model), limit=limit)
    load_into(model, item, source=str(target), layout="burn")
    return model


def _with_extension(path: Path, suffix: str) -> Path:
    """Return *path* with *suffix* in place of its own extension."""
    return path if path.name.endswith(suffix) else path.with_name(path.stem + suffix)
