"""The disk becomes full after DVC has removed the outputs of an earlier run."""

import re
import sys
import threading

import pytest
from disk import leave_free, mount_small_disk
from small_run import run_in_child
from waiting import wait_until

COMMANDS = {"dvc repro": ("dvc", "repro"), "learner run": (sys.executable, "-m", "pipeline", "run")}


def fill_after(folder, checkpoint):
    """Fill the disk of the project in *folder* when its run has written *checkpoint*."""
    wait_until(lambda: list(folder.glob(f".runs/*/checkpoint/{checkpoint}.*")))
    leave_free(folder, 0)


@pytest.mark.long  # pipeline/engine/test_reproduce.py: the command; test_crash.py: full disks
@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk_is_reported_once_with_the_command_that_restores_outputs(command, finished, tmp_path):
    """The previous outputs are restored, or the message contains the command that restores them."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def run():
        mount_small_disk(disk, 128 << 10)
        project = finished.copied_to(disk / "project")
        project.edit("params.yaml", "num_epochs: 2", "num_epochs: 20")
        before = project.files("artifacts")
        filler = threading.Thread(target=fill_after, args=(project.folder, "trainer-3"), daemon=True)
        filler.start()
        done = project.run(*COMMANDS[command], DVC_SITE_CACHE_DIR=str(tmp_path / "site"))
        return done.code, done.text, sorted(before.keys() - project.files("artifacts").keys())

    error_code, outcome, message = run_in_child(run)
    if error_code and "Operation not permitted" in message:
        pytest.skip("this machine does not permit a mount in a namespace")
    assert error_code == 0, message
    code, text, missing = outcome
    assert code != 0
    assert "Traceback" not in text
    assert "No space left on device" in text
    assert text.count("error:") == 1
    assert not missing or re.search(r"dvc checkout .*artifacts/checkpoint", text), missing
