"""The files of a tracker in its folder, and which of them no service has received.

Loggers write them, and a run store is not removed with them.
"""

import json
from contextlib import suppress
from pathlib import Path

EVENTS_FILE = "events.jsonl"
SENT_FILE = "sent.json"
"""The number of bytes of the events that the tracker has received."""
EVENT_FILES = "*/events.out.tfevents.*"
"""Pattern of TensorBoard's event files, which no service receives."""
OFFLINE_RUNS = "wandb/offline-run-*"
"""Pattern of the folders of runs that W&B stores offline."""


def is_delivered(folder: Path) -> bool:
    """Return whether a service has what the logger of *folder* has written; False for event files."""
    return not (any(folder.glob(EVENT_FILES)) or can_be_sent(folder))


def can_be_sent(folder: Path) -> bool:
    """Return whether a tracker can send something of *folder*, which excludes event files."""
    return bool(list_offline_runs(folder)) or has_unsent_events(folder)


def has_unsent_events(folder: Path) -> bool:
    """Return whether the tracker of *folder* has not received all events."""
    events = folder / EVENTS_FILE
    return events.exists() and read_sent(folder) < events.stat().st_size


def read_sent(folder: Path) -> int:
    """Return the number of bytes of the events that the tracker has received."""
    with suppress(OSError, ValueError):
        return int(json.loads((folder / SENT_FILE).read_text()))
    return 0


def list_offline_runs(folder: Path) -> list[Path]:
    """Return the folders of the offline runs of W&B that `wandb sync` has not marked as sent."""
    runs = {path for path in folder.glob(OFFLINE_RUNS) if any(path.glob("*.wandb"))}
    return sorted(path for path in runs if not any(path.glob("*.wandb.synced")))
