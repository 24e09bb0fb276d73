"""A module's parameters in one file that Burn can load: Burn's ``save_file`` and ``load_file``."""

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
    """Write the record of *model* to *path* with the recorder's extension and return the file's path.

    As in Burn, the extension replaces that of *path*, unless it is the recorder's already, and missing parent
    directories are created. The file is replaced atomically when it is complete.

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

    Tensors are converted to the dtypes and devices of *model*, so a file of any precision can be loaded.
    *limit* raises the number of content bytes that a file may have if it compresses more than 100 times.

    Raises:
        RecordError: If the file is missing, or if it is not the record of such a model; *model* is then
            unchanged.
    """
    target = _with_extension(Path(path), recorder.suffix)
    item = recorder.load(target, record_of(model), limit=limit)
    load_into(model, item, source=str(target), layout="burn")
    return model


def _with_extension(path: Path, suffix: str) -> Path:
    """Return *path* with its extension replaced by *suffix*."""
    return path if path.name.endswith(suffix) else path.with_name(path.stem + suffix)
