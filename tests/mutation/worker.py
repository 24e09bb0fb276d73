"""The parent's side of a fork server: starts it and sends it one mutant at a time."""

import json
import subprocess
import sys
from pathlib import Path

from baseline import environment

SERVER = Path(__file__).with_name("fork_server.py")


class Worker:
    """A context manager for a fork server that runs in *copy* and has imported *modules*."""

    def __init__(self, copy, modules):
        self._copy = copy
        self._modules = copy.with_name(f"{copy.name}-modules.json")
        self._modules.write_text(json.dumps(modules))

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, SERVER, self._copy, self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._copy.with_name(f"{self._copy.name}-server").open("w"),
            env=environment(self._copy),
            text=True,
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def ask(self, request):
        """Return ``outcome``, ``killer``, ``seconds`` and the number of ``tests`` of *request*."""
        if not request["tests"]:
            return {"outcome": "untested", "killer": "", "seconds": 0.0, "tests": 0}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the fork server of {self._copy} exited: see {self._copy}-server")
        return json.loads(answer) | {"tests": len(request["tests"])}

    def output(self):
        """Return what the tests of the last request printed."""
        return self._copy.with_name(f"{self._copy.name}-output").read_text(errors="replace")
