"""The environment of a run: what may change the last digits of its numbers.

A checkpoint contains the public version of torch and nothing about the machine, so that its bytes are equal
everywhere. The build of torch and the device are in a file beside the checkpoints, which nothing tracks.
"""

import json
import logging
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from stages.contracts.text import to_json
from stages.runs.file_names import ENVIRONMENT_FILE
from stages.system.files import write_text

log = logging.getLogger(__name__)


def describe_environment(
    device: torch.device, precision: str, *, ranks: int = 1, strategy: str = "ddp"
) -> dict[str, str]:
    """Return the environment as a checkpoint contains it, without anything about the machine."""
    version = torch.__version__.partition("+")[0]
    environment = {"torch": version, "device": device.type, "precision": precision}
    if ranks > 1:
        environment["ranks"] = str(ranks)
    if strategy != "ddp":
        environment["strategy"] = strategy
    return environment


def describe_machine(device: torch.device) -> dict[str, str]:
    """Return the build of torch, with its local label, the machine, and the libraries of *device*."""
    machine = {"torch build": str(torch.__version__), "machine": platform.machine()}
    if device.type == "cuda":
        machine["device name"] = torch.cuda.get_device_name(device)
        machine["cuda"] = str(torch.version.cuda)
        machine["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return machine


def write_machine(directory: Path, machine: Mapping[str, str]) -> None:
    """Write *machine* beside the checkpoints in *directory*; log an error: no result depends on it."""
    try:
        write_text(directory / ENVIRONMENT_FILE, to_json(machine) + "\n")
    except OSError as error:
        log.warning("a resume on another machine will not be reported: %s", error)


def read_environment(recorded: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the environment of a checkpoint in *directory*: its *recorded* part, and the file beside it."""
    environment = dict(recorded)
    with suppress(OSError, ValueError, TypeError):  # the file is missing or damaged
        environment |= json.loads((directory / ENVIRONMENT_FILE).read_bytes())
    return environment


def describe_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str]:
    """Return the entries that both *then* and *now* have and that differ, as text."""
    default = {"ranks": "1", "strategy": "ddp"}
    before, after = ({**default, **versions} if then else {} for versions in (then, now))
    keys = [key for key, value in after.items() if before.get(key, value) != value]
    return ", ".join(f"{key} {before[key]}" for key in keys), ", ".join(f"{key} {after[key]}" for key in keys)
