"""Identity and liveness of processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stages.system import processes
from stages.system.processes import ProcessIdentity, from_json, is_alive, to_json


@pytest.fixture
def sleeper(tmp_path):
    """Return a process whose working directory is *tmp_path*."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path)
    yield process
    process.kill()
    process.communicate()


def test_start_time_has_the_value_of_proc_as_in_older_versions(sleeper):
    for pid in (os.getpid(), sleeper.pid):
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]

        assert ProcessIdentity.of(pid).started == ticks


def test_identity_is_restored_from_json_and_other_text_is_rejected():
    process = ProcessIdentity.of_this_process()

    assert from_json(to_json(process)) == process
    assert [from_json(text) for text in ("", "{", "3", '{"pid": 3}')] == [None] * 4


def test_process_has_ended_once_it_is_collected(sleeper):
    identity = ProcessIdentity.of(sleeper.pid)
    assert not identity.has_ended()

    sleeper.kill()
    sleeper.wait()

    assert identity.has_ended()


def test_zombie_is_not_alive(sleeper):
    assert is_alive(sleeper.pid)

    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)

    assert not is_alive(sleeper.pid)


@pytest.mark.parametrize("pid", [-1, 0, 2**40])
def test_unused_process_id_is_not_alive(pid):
    assert not is_alive(pid)


def test_ancestors_begin_with_the_parent_and_end_with_the_first_process():
    found = processes.ancestors()

    assert found[0] == os.getppid()
    assert found[-1] <= 1


def test_processes_below_a_folder_have_their_working_directory_in_it(sleeper, tmp_path):
    assert list(processes.pids_below(tmp_path)) == [sleeper.pid]
    assert list(processes.pids_below(tmp_path / "empty")) == []
    assert processes.parent_of(sleeper.pid) == os.getpid()
    assert processes.command_of(sleeper.pid)[1:] == ["-c", "input()"]


def test_child_process_of_a_command_without_standard_streams_has_open_ones(tmp_path):
    result = tmp_path / "result"
    program = (
        "import subprocess; from stages.contracts import printing; printing.open_closed_streams(); "
        f"subprocess.run(['sh', '-c', 'cat && echo lost && echo lost >&2 && echo written >{result}'])"
    )

    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], check=True)

    assert result.read_text() == "written\n"
