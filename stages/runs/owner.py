"""One process, told from every other one: also from a later one that has its number."""

import functools
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """A process on some host."""

    pid: int
    host: str
    boot: str
    """Another one after each start of the machine; empty where the system does not say."""
    started: str
    """When the process began, in the system's own count; empty where the system does not say."""

    @classmethod
    def this_process(cls) -> "Owner":
        """The one that asks."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "Owner":
        """Process *pid* of this host."""
        return _owner(pid)

    def is_gone(self) -> bool:
        """Whether the process is known to have ended; of another host's nothing is known."""
        if self.host != socket.gethostname():
            return False
        if self.boot != _boot():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.started != _started(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid}, host {self.host}"


def to_json(owner: Owner) -> str:
    """*owner* as one line."""
    return json.dumps(asdict(owner))


def from_json(text: str | bytes) -> Owner | None:
    """What `to_json` made; None for anything else."""
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError):
        return None


@functools.lru_cache(maxsize=4)
def _owner(pid: int) -> Owner:
    return Owner(pid, socket.gethostname(), _boot(), _started(pid))


def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def _started(pid: int) -> str:
    """Field 22 of the system's own line about *pid*; the name in it may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
