"""Platforms other than Linux: every command reports them with one message."""

import os
import subprocess
import sys

import pytest

from pipeline.__main__ import NO_ANALYTICS

PROGRAM = """
import sys
sys.platform = {platform!r}
sys.argv = ["learner", *{arguments!r}]
from pipeline.__main__ import main
main()
"""


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
@pytest.mark.parametrize("arguments", [["run"], ["--help"], ["init", "new"], ["stage", "fit"]])
def test_other_platforms_are_refused_with_one_message(platform, arguments):
    program = PROGRAM.format(platform=platform, arguments=arguments)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: learner runs on Linux only; found platform '{platform}'.")
    assert done.stderr.count("\n") == 1
    assert all(each in done.stderr for each in ("fcntl.flock", "/proc", "hard links", "Use a Linux machine"))


def test_platform_is_checked_before_modules_that_only_linux_has():
    program = PROGRAM.format(platform="darwin", arguments=["run"]).replace(
        "main()", "import atexit; atexit.register(lambda: print(*sys.modules)); main()"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert not {"fcntl", "pipeline.cli", "stages"} & set(done.stdout.split())


@pytest.mark.parametrize("own", [{}, {"DO_NOT_TRACK": "0"}])
def test_dvc_and_prefect_send_no_usage_statistics_unless_variables_of_the_user_differ(own):
    """The variables are those of the process and of its child processes."""
    names = list(NO_ANALYTICS)
    at_exit = f"import atexit, os; atexit.register(lambda: print(*map(os.environ.get, {names})))"
    program = at_exit + PROGRAM.format(platform=sys.platform, arguments=["--version"])
    environment = {name: value for name, value in os.environ.items() if name not in names} | own

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )

    assert done.stdout.splitlines()[-1].split() == list((NO_ANALYTICS | own).values())
