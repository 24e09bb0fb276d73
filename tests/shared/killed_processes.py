"""Processes that are killed at a chosen file operation."""

import os
import signal
import sys

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"}


def killed_before(number, action):
    """Run *action* in another process; return whether it was killed before its file operation *number*.

    File operations are all opens, renames, removals and locks of Python in that process.
    """
    pid = os.fork()
    if pid == 0:
        _kill_at(number)
        try:
            action()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the child must not run on as a second pytest
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _kill_at(number):
    left = iter(range(number))

    def hook(event, arguments):
        if event in FILE_EVENTS and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
