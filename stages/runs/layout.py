"""Layout of ``.runs``, which git and DVC ignore: the only module that names its files and directories.

::

    .runs/
      3f2a…/                the run store with the key 3f2a…
        key.json            the entries that the key is a hash of
        learner.json        the learner, and beside it its initial records
        dataset.json        the description of the training data
        checkpoint/ steps/  checkpoints of epochs, and the newest one within an epoch
        train/ valid/       logs
        finished.json       sizes and hashes of all files of a finished run
        logs.jsonl          sizes and hashes of the logs of each finished epoch
        heartbeat.json      the progress of the run
        environment.json    the build of torch and the machine of the last process
      3f2a….lock            the process that works in the store
      3f2a….ranks/          the output of its ranks, except for rank 0
      .trash-3f2a…-…        a store that is being removed; the next removal finishes an interrupted one
      telemetry/3f2a…/      what no tracker has received of a removed store: `learner runs sync` sends it
      durations/            the times that finished runs took
      lock                  the process that works in the project
      folders/              the files of each folder with code that a stage has depended on
      missing-deps.json     files that stages have read, and that are not in their deps
      dvc.lock …            the files of the pipeline below
"""

import secrets
from itertools import chain, count
from pathlib import Path

from stages.runs.key import KEY

RUNS_FOLDER = ".runs"
"""Name of the directory, relative to the project."""

KEY_FILE = "key.json"
FINISHED_FILE = "finished.json"
LOGS_FILE = "logs.jsonl"
HEARTBEAT_FILE = "heartbeat.json"
TRASH_PREFIX = ".trash-"
LOCK_SUFFIX = ".lock"
MISSING_DEPS = "missing-deps.json"
FOLDERS = "folders"
RANKS_SUFFIX = ".ranks"
DURATIONS_FOLDER = "durations"
TELEMETRY_FOLDER = "telemetry"
"""Name of the folder with the files of trackers, in a store and, for removed stores, beside the stores."""

PROJECT_LOCK = Path(RUNS_FOLDER, "lock")
"""Held while a process changes the outputs of the project."""
LOCKFILE_BACKUP = Path(RUNS_FOLDER, "dvc.lock")
"""The last intact dvc.lock."""
LOCKFILE_BACKUP_LOCK = Path(RUNS_FOLDER, "dvc.lock.lock")
"""Held while a process writes that backup."""
PARAMS_JOURNAL = Path(RUNS_FOLDER, "params-journal.json")
"""The params that a run has overridden in params.yaml, until it restores them."""
PARAMS_BACKUP = Path(RUNS_FOLDER, "params-before.yaml")
"""The content of params.yaml before a run, if it could not be restored."""
FLOW_RUNS_FOLDER = Path(RUNS_FOLDER, "flow-runs")
"""The Prefect flow runs in progress."""
UNREACHABLE_API_FILE = Path(RUNS_FOLDER, "prefect-unreachable.json")
"""The DVC process that has been warned of a Prefect API that does not respond."""
COPIES_FOLDER = Path(RUNS_FOLDER, "experiments")
"""Clones in which deployments run experiments."""
SWEEP_FOLDER = Path(RUNS_FOLDER, "sweep")
"""Clones, logs and locks of the points of sweeps."""
RUNGS_SUFFIX = ".rungs"
"""Suffix of the file there that a sweep locks while it may resume points that have finished."""


def watchdog_claim(pid: int) -> Path:
    """Return the file that the watchdog of process *pid* locks, so that there is only one."""
    return Path(RUNS_FOLDER, f"watchdog-{pid}")


def stores(root: Path) -> list[Path]:
    """Return the directories of all run stores below *root*, sorted by key."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if KEY.fullmatch(path.name) and path.is_dir())


def list_rungs(root: Path) -> list[Path]:
    """Return the files that sweeps lock while they may resume finished stores below *root*."""
    return list(root.glob(f"{SWEEP_FOLDER.name}/*{RUNGS_SUFFIX}"))


def lock_of(store_path: Path) -> Path:
    """Return the lock file of a store, which is not in it, so that renaming the store does not move it."""
    return store_path.with_name(f"{store_path.name}{LOCK_SUFFIX}")


def ranks_of(store_path: Path) -> Path:
    """Return the folder with the output of the ranks of a store; it is beside the store, as the lock is."""
    return store_path.with_name(f"{store_path.name}{RANKS_SUFFIX}")


def locks(root: Path) -> list[Path]:
    """Return the lock files of all stores below *root*, also of removed ones."""
    return [path for path in root.glob(f"*{LOCK_SUFFIX}") if KEY.fullmatch(path.stem)]


def list_named_locks(root: Path) -> list[Path]:
    """Return the lock files below *root* that name a process: it works in the store, or was killed there."""
    return [path for path in locks(root) if path.stat().st_size]  # a lock that was released is empty


def new_trash_path(store_path: Path) -> Path:
    """Return a new name for a store before its removal."""
    return store_path.with_name(f"{TRASH_PREFIX}{store_path.name}-{secrets.token_hex(4)}")


def trash(root: Path) -> list[Path]:
    """Return the stores below *root* whose removal has begun."""
    return list(root.glob(f"{TRASH_PREFIX}*"))


def free_logger_path(trash_path: Path, name: str) -> Path:
    """Return a free path, with the key of the store in the trash, for the folder of its logger *name*."""
    key = trash_path.name.removeprefix(TRASH_PREFIX).partition("-")[0]
    folder = trash_path.with_name(TELEMETRY_FOLDER) / key
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for path in map(folder.joinpath, names) if not path.exists())


def list_logger_folders(root: Path) -> list[tuple[str, Path]]:
    """Return the key of the run and the folder of each logger, of stores and of removed stores."""
    removed = sorted((root / TELEMETRY_FOLDER).glob("*"))
    parents = [(path.name, path / TELEMETRY_FOLDER) for path in stores(root)]
    parents += [(path.name, path) for path in removed]
    return [(key, folder) for key, parent in parents for folder in sorted(parent.glob("*"))]
