"""The library needs nothing that only Linux has, so that it runs on macOS too."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINUX_NAMES = {
    *(
        "copy_file_range",
        "eventfd",
        "memfd_create",
        "pidfd_open",
        "posix_fadvise",
        "sched_getaffinity",
        "splice",
    ),
    *("sched_setaffinity", "O_PATH", "O_TMPFILE", "sendfile", "setns", "unshare"),
    *("MADV_DONTFORK", "MADV_HUGEPAGE"),
}
"""Names in `os`, `signal`, `fcntl` and `mmap` that macOS lacks."""
PROGRAM = """
import mmap, os, pathlib, platform, signal, sys, sysconfig

import numpy as np
import psutil, pydantic, torch

sysconfig.get_config_vars()  # read from a module with the name of the platform

for name in {names!r}:
    vars(os).pop(name, None)
    vars(signal).pop(name, None)
    vars(mmap).pop(name, None)
sys.platform = "darwin"
platform.machine, platform.system = lambda: "arm64", lambda: "Darwin"

def refuse(event, arguments):
    path = str(arguments[0]) if event == "open" else ""
    if path.startswith(("/proc", "/sys")) and not path.endswith("boot_id"):  # which exists here
        frame = sys._getframe(1)
        while frame and not any(name in frame.f_code.co_filename for name in ("psutil", "/stages/")):
            frame = frame.f_back
        if frame and "psutil" not in frame.f_code.co_filename:  # psutil reads them on Linux only
            raise FileNotFoundError(2, "no such file on this platform", arguments[0])

sys.addaudithook(refuse)
sys.path.insert(0, "tests/shared")
from small_runs import train
from stages import load_model

folder = pathlib.Path(sys.argv[1])
np.savez(folder / "data.npz", inputs=np.ones((60, 3), np.float32), targets=np.arange(60) % 3)
source = {{"kind": "npz", "path": str(folder / "data.npz")}}
for epochs in (1, 2):
    artifacts = train(folder, source, num_epochs=epochs)
print(load_model(artifacts).predict(np.ones((2, 3), np.float32)).labels)
"""


def test_no_module_of_the_library_uses_names_that_only_linux_has():
    texts = {path: path.read_text() for path in (ROOT / "stages").rglob("*.py")}
    used = {
        f"{path.relative_to(ROOT)}: {node.attr}"
        for path, text in texts.items()
        if any(name in text for name in LINUX_NAMES)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in LINUX_NAMES
    }

    assert used == {"stages/data/loaders.py: sched_getaffinity"}  # only if os has it


@pytest.mark.long  # the test above reads the names
def test_stages_run_without_what_only_linux_has(tmp_path):
    program = PROGRAM.format(names=sorted(LINUX_NAMES))

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "resuming run" in done.stdout
    assert len(ast.literal_eval(done.stdout.splitlines()[-1])) == 2
