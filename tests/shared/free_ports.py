"""A port for a server that a test starts."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

PORTS = range(20_000, 30_000)
"""Ports that Linux gives to no outgoing connection, which could take the port before the server."""
CLAIMS = Path(tempfile.gettempdir(), f"learner-test-ports-{os.geteuid()}")
"""Locked files, one for each port that a process of tests has chosen."""


def free_port():
    """Return a free port of the loopback interface, for a server whose port must be known before it starts.

    No other process of tests chooses it before this process has ended.
    """
    CLAIMS.mkdir(exist_ok=True)
    while True:
        port = random.SystemRandom().choice(PORTS)
        claim = os.open(CLAIMS / str(port), os.O_RDWR | os.O_CREAT)
        with suppress(OSError), socket.socket() as probe:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.bind(("127.0.0.1", port))
            return port  # the lock is held until this process ends
        os.close(claim)
