"""Errors of the operating system that no part of the project explains: one message, and nothing is lost."""

import errno
import os
import sqlite3
import subprocess
import sys

import pytest

from pipeline.engine.error_reports import report_error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "dvc.lock"), "File too large: 'dvc.lock'"),
        (PermissionError(errno.EACCES, "Permission denied", ".dvc/tmp"), "Permission denied: '.dvc/tmp'"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "home/.config"), "Not a directory"),
        (sqlite3.OperationalError("disk I/O error"), "disk I/O error"),
    ],
)
def test_error_of_the_system_is_one_message_with_a_remedy(error, text, capsys):
    assert report_error(error) == 1

    printed = capsys.readouterr().err
    assert text in printed
    assert "`ulimit -a`" in printed
    assert "Traceback" not in printed


READ_ONLY = "mount --bind .dvc .dvc && mount -o remount,bind,ro .dvc"
LIMITS = ["ulimit -f 1", "ulimit -f 40", "ulimit -n 12", "export HOME=$PWD/params.yaml", READ_ONLY]


@pytest.mark.long
@pytest.mark.parametrize("limit", LIMITS)
def test_refused_files_are_one_message_and_the_same_command_then_succeeds(limit, finished, tmp_path):
    """The fast sibling is the test above."""
    project = finished
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
    command = [sys.executable, "-m", "pipeline", "run"]
    shell = ["bash", "-c", f'set -e; {limit}; exec "$@"', "bash", *command]
    if limit == READ_ONLY:
        shell = ["unshare", "--map-root-user", "--mount", *shell]
        if subprocess.run([*shell[:3], "true"], check=False).returncode:
            pytest.skip("this machine does not permit a mount in a namespace")

    done = subprocess.run(
        shell, cwd=project.folder, env=project.environment, capture_output=True, text=True, check=False
    )

    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stdout + done.stderr
    if done.returncode:
        assert done.stderr.count("error:") == 1
    project.call("run").ok()
