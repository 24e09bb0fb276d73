"""SFTP server on loopback: ``sftp.py FOLDER KEY`` serves FOLDER to clients with KEY, and prints its port."""

import asyncio
import sys

import asyncssh


async def serve(folder, key):
    """Serve *folder* to clients with the private *key*, and print the port."""
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[key],
        authorized_client_keys=f"{key}.pub",
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=folder),
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1].encode(), sys.argv[2]))
