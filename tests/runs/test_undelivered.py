"""Files of trackers outlive the store of their run until a service has them."""

from pathlib import Path

import pytest

from stages.runs import open_store, prune, prune_unfinished
from stages.runs.layout import list_logger_folders

EVENTS = b'{"run": {}}\n{"point": {}}\n'
UNDELIVERED = {
    "events for a server that did not respond": {"mlflow/events.jsonl": EVENTS},
    "events that were sent in part": {"mlflow/events.jsonl": EVENTS, "mlflow/sent.json": b"12"},
    "run of W&B that was not synced": {
        "wandb/events.jsonl": EVENTS,
        "wandb/sent.json": b"27",
        "wandb/wandb/offline-run-1-a/run-a.wandb": b"",
    },
    "event file of TensorBoard": {"tensorboard/train/events.out.tfevents.1": b""},
}
DELIVERED = {
    "mlflow/events.jsonl": EVENTS,
    "mlflow/sent.json": b"27",
    "wandb/wandb/offline-run-1-a/run-a.wandb": b"",
    "wandb/wandb/offline-run-1-a/run-a.wandb.synced": b"",
    "train/epoch-1/Speed.log": b"1",
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("removal", ["prune", "prune_unfinished", "restart"])
@pytest.mark.parametrize("files", UNDELIVERED.values(), ids=UNDELIVERED)
def test_removal_of_a_store_keeps_what_no_service_has(files, removal, root):
    for _ in range(2):
        with open_store(root, {"number": 1}) as store:
            write(store.path / "telemetry", {"train/epoch-1/Speed.log": b"1", **files})
            if removal == "prune":
                store.finish({})
            if removal == "restart":
                store.restart()
        prune(root, 0)
        prune_unfinished(root)

    [(first_key, first), (second_key, second)] = list_logger_folders(root)
    assert first_key == second_key == store.key
    assert second.name == f"{first.name}-2"
    for name, content in files.items():
        below = Path(name).relative_to(first.name)
        assert (first / below).read_bytes() == (second / below).read_bytes() == content
    assert {path.name for path in root.iterdir()} == {"telemetry"}


def test_removal_of_a_store_removes_what_a_service_has(root):
    with open_store(root, {"number": 1}) as store:
        write(store.path / "telemetry", DELIVERED)
        store.finish({})

    assert prune(root, 0) == [store.key]
    assert not list(root.iterdir())
