"""The trained model of a revision."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stages
from pipeline.project.revisions.names import resolve
from pipeline.project.revisions.revision import Revision
from stages.data.storage import DATASET_FILE
from stages.inference import TrainedModel
from stages.inference.trained_model import CONFIG_FILE, EXPORTS_FOLDER, LEARNER_FOLDER
from stages.runs.file_names import SPEC_FILE


def load_model(revision: str, **options: Any) -> TrainedModel:
    """Return the trained model of *revision*, an experiment or a commit of the current project.

    *options* are those of `stages.load_model`. Raises its errors, and `CheckpointError` if the model is
    neither in the cache nor in a remote.
    """
    with copy_model(revision) as path:
        return stages.load_model(path, **options)


@contextmanager
def copy_model(revision: str, *, folders: Sequence[str] = ()) -> Iterator[Path]:
    """Copy what `stages.load_model` needs of *revision* to a temporary folder; yield the path of the model.

    *folders* are names of paths, of which there is a copy beside the model.
    """
    source = Revision(resolve(revision))
    paths = source.paths
    with TemporaryDirectory() as folder:
        target = Path(folder)
        copies = {paths[name]: name for name in folders} | {
            paths["config"]: CONFIG_FILE,
            paths["learner"] / SPEC_FILE: f"{LEARNER_FOLDER}/{SPEC_FILE}",
            paths["dataset"]: f"{EXPORTS_FOLDER}/{DATASET_FILE}",
            paths["model"]: paths["model"].name,
        }
        for path, name in copies.items():
            source.copy(path, target / name)
        yield target / paths["model"].name
