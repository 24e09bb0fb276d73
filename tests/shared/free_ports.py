"""A port for a server that a test starts."""

import random
import socket
from contextlib import suppress

PORTS = range(20_000, 30_000)
"""Ports that Linux gives to no outgoing connection, which could take the port before the server."""


def free_port():
    """Return a free port of the loopback interface."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
