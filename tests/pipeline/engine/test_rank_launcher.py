"""The launcher of ranks, with real processes. A rank is a short program, mostly without torch."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from forked_programs import ForkedProgram
from waiting import LIMIT_SECONDS, has_exited, wait_until

from pipeline.engine.rank_launcher import display_run, run_ranks
from stages.contracts.errors import RunInterruptedError, StageError
from stages.contracts.events import Interrupter, NoRenderer, Progress
from stages.runs.overview import HeartbeatRenderer

ROOT = Path(__file__).parents[3]
START = """
import os, signal, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
def accept():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)
Path(f"pid-{rank}").write_text(str(os.getpid()))
"""
SAVE = """
def save(*_):
    Path(f"saved-{rank}").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
accept()
Path(f"ready-{rank}").touch()
"""
REPORT = """
from pipeline.engine.error_reports import report_error
from stages.contracts.errors import RankLostError, RunInterruptedError, StageError
"""
HANG = "accept(); time.sleep(1000)"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); wait_for('never')"
GLOO = """
import torch
torch.distributed.init_process_group("gloo")
total = torch.tensor([rank + 1.0])
torch.distributed.all_reduce(total)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run each test in an empty folder, in which the ranks write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def command(*parts):
    return [sys.executable, "-c", "\n".join([START, *map(textwrap.dedent, parts)])]


def run(*parts, interrupter=None, ranks=2, max_restarts=0):
    """Run the program *parts* in each rank."""
    devices = [f"cuda:{number}" for number in range(ranks)]
    run_ranks(command(*parts), devices, Path("logs"), interrupter or Interrupter(), max_restarts=max_restarts)


def failure(*parts, **options):
    """Return the message of the error of the launch."""
    with pytest.raises(StageError) as caught:
        run(*parts, **options)
    assert not isinstance(caught.value, RunInterruptedError)
    assert caught.value.exit_code == 1
    return str(caught.value)


@pytest.mark.parametrize("first_epoch", [1, 2])
def test_epochs_that_end_before_the_first_reading_are_shown(first_epoch, folder):
    """The ranks of a small model finish epochs faster than the launcher reads their heartbeat."""
    ended = []

    class Shown(NoRenderer):
        def epoch_end(self, progress, history):
            ended.append(progress.epoch)

    with display_run(folder, Shown(), Progress(4)):
        HeartbeatRenderer(folder).start(Progress(4, first_epoch=first_epoch, epoch=3))
        wait_until(lambda: ended)

    assert ended == [*range(first_epoch, 4)]


@pytest.fixture
def _short_grace(monkeypatch):
    """Have ranks that do not end killed soon."""
    monkeypatch.setattr("pipeline.engine.rank_launcher.GRACE_SECONDS", 0.1)


def pids():
    return [int(path.read_text()) for path in Path().glob("pid-*")]


def no_rank_runs():
    return all(map(has_exited, pids()))


def stop_when(interrupter, *names):
    """Request a stop, from another thread, as soon as files with *names* exist."""

    def stop():
        wait_until(lambda: all(Path(name).exists() for name in names))
        interrupter.stop("SIGTERM")

    threading.Thread(target=stop, daemon=True).start()


def start_launcher(*parts):
    """Start a fork that launches two ranks as a stage does, and wait until both are ready."""
    program = f"""
        import sys
        from pathlib import Path
        from pipeline.engine.rank_launcher import run_ranks
        from pipeline.engine.signals import defer_signals, end_on_signal
        from pipeline.engine.error_reports import report_error
        from stages.contracts.events import Interrupter
        try:
            interrupter = Interrupter()
            with end_on_signal(), defer_signals(interrupter):
                run_ranks({command(*parts)!r}, ["cpu", "cpu"], Path("logs"), interrupter)
        except BaseException as error:
            sys.exit(report_error(error))
    """
    Path("launcher.py").write_text(textwrap.dedent(program))
    streams = [Path("out").absolute(), Path("err").absolute()]
    for stream in streams:
        stream.touch()
    process = ForkedProgram("launcher", (), folder=Path.cwd(), environment=dict(os.environ), streams=streams)
    wait_until(lambda: Path("ready-0").exists() and Path("ready-1").exists(), process=process)
    return process


def test_ranks_have_the_environment_of_torchrun(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    run("Path(f'env-{rank}').write_text('\\n'.join(f'{k}={v}' for k, v in os.environ.items()))", ranks=3)

    lines = Path("env-2").read_text().splitlines()
    assert {"RANK=2", "LOCAL_RANK=2", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1"} <= {
        *lines
    }
    assert [line for line in lines if line.startswith("MASTER_PORT=")]
    assert not [line for line in lines if line.startswith("OMP_NUM_THREADS")]


def test_arguments_of_a_rank_are_passed_unchanged():
    run_ranks(
        [*command("Path(f'arguments-{rank}').write_text(sys.argv[1])"), "$$ ${local_rank} $HOME"],
        ["cpu"],
        Path("logs"),
        Interrupter(),
    )

    assert Path("arguments-0").read_text() == "$$ ${local_rank} $HOME"


@pytest.mark.long
def test_ranks_start_on_a_port_that_this_process_used_before():
    """Torch keeps the ports of closed stores. The network of this test has only such ports."""
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system allows no network namespace")
    program = f"""
        from pathlib import Path
        from torch.distributed import TCPStore
        from pipeline.engine.rank_launcher import run_ranks
        from stages.contracts.events import Interrupter
        for port in range(20000, 20016):
            TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, multi_tenant=True)
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20000 20015")
        run_ranks({command("pass")!r}, ["cpu", "cpu"], Path("logs"), Interrupter())
    """
    run_python = [sys.executable, "-c", textwrap.dedent(program)]

    subprocess.run([*alone, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *run_python], check=True)

    assert Path("pid-1").exists()


@pytest.mark.long  # test_several_devices.py trains on two ranks
def test_ranks_are_connected():
    run(
        GLOO,
        "torch.distributed.destroy_process_group()",
        "Path(f'total-{rank}').write_text(str(total.item()))",
    )

    assert [Path(f"total-{rank}").read_text() for rank in (0, 1)] == ["3.0", "3.0"]


def test_output_of_rank_0_is_inherited_and_that_of_the_others_is_in_new_logs(capfd):
    for text in ("first", "second"):
        run(f"print('{text} of', rank); print('error of', rank, file=sys.stderr)")

    out, err = capfd.readouterr()
    assert out == "first of 0\nsecond of 0\n"
    assert err == "error of 0\n" * 2
    assert sorted(Path("logs/1.log").read_text().splitlines()) == ["error of 1", "second of 1"]


def test_output_of_rank_0_is_written_to_a_replaced_standard_output():
    with redirect_stdout(StringIO()) as output:
        run("print('line of', rank)")

    assert output.getvalue() == "line of 0\n"


def test_launch_changes_neither_environment_nor_handlers_and_writes_only_logs(folder, monkeypatch, caplog):
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    before = dict(os.environ), [signal.getsignal(number) for number in range(1, 32)]

    failure("sys.exit(rank)")

    assert (dict(os.environ), [signal.getsignal(number) for number in range(1, 32)]) == before
    assert not caplog.records
    assert {path.name for path in folder.iterdir()} == {"logs", "pid-0", "pid-1"}
    assert [path.name for path in Path("logs").iterdir()] == ["1.log"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os._exit(7)", "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("sys.exit('error: no space left')", "no space left"),
        ("raise ValueError('wrong')", "exited with code 1"),
    ],
)
def test_failed_rank_ends_the_others_and_is_named(end, reason):
    message = failure(f"wait_for('pid-0')\nif rank == 1: {end}", HANG)

    assert message.startswith(f"rank 1 (cuda:1): {reason}")
    assert no_rank_runs()


def test_error_of_a_rank_contains_the_last_lines_of_its_log():
    message = failure("for n in range(30 * rank): print('line', n)", "sys.exit(rank)")

    lines = message.splitlines()
    assert lines[1] == "  log: logs/1.log"
    assert lines[2:] == [f"  line {n}" for n in range(10, 30)]


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.parametrize("hang", [IGNORE, "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_rank_that_cannot_handle_a_signal_is_killed_after_a_failure(hang):
    message = failure("wait_for('pid-0')\nif rank == 1: sys.exit(3)", hang)

    assert message.startswith("rank 1 (cuda:1): exited with code 3")
    assert no_rank_runs()


def test_error_of_rank_0_is_not_printed_by_the_rank(capfd):
    message = failure(REPORT, "if rank == 0: sys.exit(report_error(StageError('no space left')))", HANG)

    assert message == "rank 0 (cuda:0): no space left"
    assert capfd.readouterr().err == ""


def test_error_of_another_rank_is_in_its_log_too():
    message = failure(REPORT, "if rank == 1: sys.exit(report_error(StageError('no space left')))", HANG)

    assert message == "rank 1 (cuda:1): no space left\n  log: logs/1.log"
    assert Path("logs/1.log").read_text() == "error: no space left\n"


def test_rank_that_reported_its_error_first_is_named_even_if_another_exits_first():
    message = failure(
        REPORT,
        """
        if rank == 1:
            report_error(StageError("the cause"))
            Path("reported").touch()
            wait_for("gone")
            sys.exit(1)
        wait_for("reported")
        report_error(StageError("connection closed by peer"))
        Path("gone").touch()
        os._exit(1)
        """,
    )

    assert message.startswith("rank 1 (cuda:1): the cause")


@pytest.mark.long  # the next test, without torch
def test_rank_that_left_a_collective_is_named_and_not_the_one_that_lost_the_connection():
    message = failure(GLOO, "if rank == 1: os._exit(7)", "torch.distributed.all_reduce(total)")

    assert message.startswith("rank 1 (cuda:1): exited with code 7")


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("sys.exit(0)", "exited with code 0 while the other ranks needed it"),
        (IGNORE, "did not respond to the other ranks, and was killed"),
    ],
)
def test_rank_that_exits_early_or_hangs_is_named_and_not_the_one_that_lost_it(end, reason):
    lose = "report_error(RankLostError('another rank does not respond'))"

    message = failure(REPORT, f"if rank == 0: wait_for('pid-1'); sys.exit({lose})", end)

    assert message.startswith(f"rank 1 (cuda:1): {reason}")


def test_requested_stop_is_sent_to_all_ranks():
    interrupter = Interrupter()
    stop_when(interrupter, "ready-0", "ready-1")

    with pytest.raises(RunInterruptedError) as caught:
        run(SAVE, "wait_for('never')", interrupter=interrupter)

    assert caught.value.exit_code == 143
    assert Path("saved-0").exists()
    assert Path("saved-1").exists()


@pytest.mark.usefixtures("_short_grace")
def test_rank_that_saves_has_the_time_it_needs_after_the_others_have_exited():
    interrupter = Interrupter()
    stop_when(interrupter, "ready-0", "ready-1")

    with pytest.raises(RunInterruptedError):
        run(
            """
            def save(*_):
                if rank == 0:
                    wait_for("saved-1")
                    time.sleep(2)
                Path(f"saved-{rank}").touch()
                sys.exit(143)
            signal.signal(signal.SIGTERM, save)
            accept()
            Path(f"ready-{rank}").touch()
            wait_for('never')
            """,
            interrupter=interrupter,
        )

    assert Path("saved-0").exists()


def test_stop_waits_until_a_rank_accepts_it():
    interrupter = Interrupter()
    interrupter.stop("SIGTERM")

    with pytest.raises(RunInterruptedError):
        run(
            "while signal.SIGTERM not in signal.sigpending(): time.sleep(0.02)",
            SAVE,
            "wait_for('never')",
            interrupter=interrupter,
        )

    assert Path("saved-0").exists()
    assert Path("saved-1").exists()


@pytest.mark.parametrize(("code", "name"), [(143, "SIGTERM"), (130, "SIGINT"), (129, "SIGHUP")])
def test_ranks_that_were_signalled_directly_interrupt_the_run(code, name):
    with pytest.raises(RunInterruptedError) as caught:
        run(
            REPORT,
            f"sys.exit(report_error(RunInterruptedError('{name}: saved by ' + str(rank), {code} - 128)))",
        )

    assert caught.value.exit_code == code
    assert str(caught.value) == "saved by 0"


def test_ranks_that_a_stop_ends_before_they_have_a_handler_interrupt_the_run():
    interrupter = Interrupter()
    interrupter.stop("SIGTERM")

    with pytest.raises(RunInterruptedError) as caught:
        run(HANG, interrupter=interrupter)

    assert caught.value.exit_code == 143


def test_failure_in_a_save_is_reported_and_not_the_stop():
    message = failure(
        REPORT,
        "if rank == 1: os._exit(143)",
        "wait_for('pid-1')",
        "sys.exit(report_error(StageError('no space left')))",
    )

    assert message == "rank 0 (cuda:0): no space left"


def test_first_signal_stops_the_ranks_and_the_command_exits_with_its_code():
    process = start_launcher(SAVE, "wait_for('never')")

    process.send_signal(signal.SIGINT)

    assert process.wait(LIMIT_SECONDS) == 130
    assert Path("err").read_text().startswith("SIGINT: the ranks were stopped")
    assert Path("saved-1").exists()


def test_second_interrupt_kills_the_ranks():
    process = start_launcher(
        "signal.signal(signal.SIGTERM, lambda *_: Path(f'signalled-{rank}').touch()); accept()",
        "Path(f'ready-{rank}').touch(); wait_for('never')",
    )

    process.send_signal(signal.SIGINT)
    wait_until(lambda: Path("signalled-0").exists() and Path("signalled-1").exists(), process=process)
    process.send_signal(signal.SIGINT)

    assert process.wait(LIMIT_SECONDS) == 130
    assert no_rank_runs()


def test_ranks_end_when_the_launcher_is_killed():
    process = start_launcher("Path(f'ready-{rank}').touch()", IGNORE)

    process.kill()

    process.wait(LIMIT_SECONDS)
    wait_until(no_rank_runs)


def test_failed_ranks_are_restarted_as_often_as_permitted(caplog):
    with caplog.at_level(logging.WARNING):
        run(
            "if rank == 1 and not Path('again').exists(): Path('again').touch(); sys.exit('error: lost')",
            max_restarts=1,
        )

    assert "rank 1 (cuda:1): lost" in caplog.text
    assert "restart 1 of 1" in caplog.text


def test_last_failure_is_raised_after_all_restarts():
    message = failure("sys.exit('error: always') if rank == 1 else wait_for('pid-1')", max_restarts=1)

    assert message.startswith("rank 1 (cuda:1): always")


def test_command_that_cannot_be_started_is_reported():
    with pytest.raises(StageError, match=r"rank \d \(cpu\): exited with code 1"):
        run_ranks(["no-such-program"], ["cpu", "cpu"], Path("logs"), Interrupter())
