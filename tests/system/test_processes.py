"""The end of a process, without the destruction of its objects."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, sys, threading, time
from stages.system.processes import end_process

class Noted:
    def __del__(self, write=os.write):
        write(1, b"destroyed\\n")

noted = Noted()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("end")
{before}
end_process(3)
sys.exit(3)
"""


def run_program(before="", **options):
    program = PROGRAM.format(before=before)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run([sys.executable, "-c", program], text=True, check=False, env=environment, **options)


def test_process_waits_for_its_threads_and_flushes_its_streams_before_it_ends_with_the_code():
    done = run_program(stdout=subprocess.PIPE)

    assert done.returncode == 3
    assert done.stdout.split("\n") == ["end", "thread", "at exit", ""]


@pytest.mark.parametrize(
    "before",
    [
        "sys.setprofile(lambda *_: None)",
        "sys.settrace(lambda *_: None)",
        "os.environ['LD_PRELOAD'] = 'library.so'",
        pytest.param(
            "sys.monitoring.use_tool_id(2, 'profiler')",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 or later"),
        ),
    ],
)
def test_process_that_is_observed_ends_as_the_interpreter_does(before):
    done = run_program(before, stdout=subprocess.PIPE)

    assert done.returncode == 3
    assert done.stdout.split("\n") == ["end", "thread", "at exit", "destroyed", ""]


def test_closed_output_is_reported_as_by_the_interpreter():
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = run_program(stdout=reader.stdin, stderr=subprocess.PIPE)

    assert done.returncode == 120  # the code of the interpreter if it cannot flush standard output
    assert "BrokenPipeError" in done.stderr
