"""The process of a rank: its start, and what its exit means for the run.

``python -m pipeline.engine.rank_process PARENT COMMAND...`` has the kernel kill this process when *PARENT*
ends, which stays so when a process executes another program, and executes *COMMAND*.
"""

import os
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals
from typing import NoReturn

from pipeline.engine.error_reports import ERROR_PREFIX, REPORT_VARIABLE, ErrorReport, find_error, read_lines
from pipeline.engine.signals import request_parent_death_signal
from stages.contracts.errors import RankLostError, RunInterruptedError, StageError

STOPPED = {128 + number: number for number in (SIGTERM, SIGINT, SIGHUP)}
"""The signal for each exit code of a rank that was stopped and has saved its state."""
DEFAULT_MESSAGE = "the ranks were stopped. Run the same command again to resume"
MAX_LOG_LINES = 20


def main(arguments: Sequence[str]) -> NoReturn:
    """Execute the command in *arguments*, after the process that starts this one, which ends with it."""
    request_parent_death_signal(SIGKILL)  # when the thread of the parent ends that started this process
    if os.getppid() != int(arguments[0]):  # it has ended already
        os.kill(os.getpid(), SIGKILL)
    os.execvp(arguments[1], list(arguments[1:]))  # noqa: S606  no shell


def is_rank() -> bool:
    """Return whether this process is a rank of a stage whose project another process has locked."""
    return REPORT_VARIABLE in os.environ or os.environ.get("RANK", "0") != "0"


def is_rank_of_torchrun() -> bool:
    """Return whether a launcher other than this project's started this process as a rank."""
    return "RANK" in os.environ and REPORT_VARIABLE not in os.environ


def accept_termination() -> None:
    """Let SIGTERM through to the handlers of this process; one that arrived before is handled now.

    The launcher starts a rank with SIGTERM blocked, because a rank that exits before all ranks can agree on a
    step would leave the others waiting for it. Call it in the main thread, once the ranks are connected and a
    handler is installed. In another process than a rank's it has no effect.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGTERM])


def log_of(folder: Path, rank: int) -> Path:
    """Return the file with the output of *rank*; rank 0 may have none."""
    return folder / f"{rank}.log"


def report_of(folder: Path, rank: int) -> Path:
    """Return the file with the error of *rank*."""
    return folder / f"{rank}.error.json"


@dataclass(frozen=True)
class RankExit:
    """The exit of one rank."""

    rank: int
    code: int
    """The exit code, negative for a signal."""
    seconds: float
    """The time of the exit on the monotonic clock."""
    report: ErrorReport | None
    """The error that the rank reported, if any."""
    sent: frozenset[int] = frozenset()
    """The signals that the launcher had sent to the rank."""

    @property
    def has_failed(self) -> bool:
        """Return whether the rank failed, by itself or as a consequence of another failure."""
        return self.code != 0 and self.code not in STOPPED

    @property
    def was_ended(self) -> bool:
        """Return whether the launcher ended the rank before it reported an error."""
        return -self.code in self.sent and self.report is None

    @property
    def is_lost(self) -> bool:
        """Return whether the rank reported that it lost the connection to another one."""
        return self.report is not None and self.report.code == RankLostError.exit_code


def build_failure(exits: Collection[RankExit], devices: Sequence[str], folder: Path) -> StageError | None:
    """Return the error of the rank that failed first, with its log in *folder*; None if no rank failed.

    *devices* are those of the ranks, for the message.
    """
    failed = _find_failure(exits)
    if failed is None:
        return None
    log = log_of(folder, failed.rank)
    lines = read_lines(log) if failed.rank > 0 and log.exists() else []
    reported = failed.report.message.removeprefix(ERROR_PREFIX) if failed.report else find_error(lines)
    place = f"\n  log: {log}" if lines else ""
    tail = "" if reported else "".join(f"\n  {line}" for line in lines[-MAX_LOG_LINES:])
    reason = reported or _describe(failed)
    return StageError(f"rank {failed.rank} ({devices[failed.rank]}): {reason}{place}{tail}")


def _find_failure(exits: Collection[RankExit]) -> RankExit | None:
    """Return the exit of the rank that failed first; None if no rank failed.

    The others usually fail because they lose the connection to it. A rank that was killed is therefore the
    first one, even if another one reported its error sooner than the exit was seen. If all that report an
    error have lost a connection, it is that to a rank that exited with code 0 or did not respond.
    """
    failed = [exited for exited in exits if exited.has_failed]
    causes = [exited for exited in failed if not (exited.is_lost or exited.was_ended)]
    lost = [exited for exited in failed if exited.is_lost]
    silent = [exited for exited in exits if exited.code == 0 or exited.was_ended] if lost else []
    return min(causes or silent or lost, key=_order, default=None)


def build_interruption(exits: Collection[RankExit]) -> RunInterruptedError | None:
    """Return the error for ranks that were stopped and have saved, with rank 0's message; None without one.

    A rank that stopped because another one received a signal has the code of SIGINT, so another signal counts
    first. A rank that had no handler yet was ended by the SIGTERM of the launcher.
    """
    stopped = sorted((exited for exited in exits if exited.code != 0), key=lambda exited: exited.rank)
    if not stopped:
        return None
    numbers = sorted(STOPPED[exited.code] for exited in stopped if exited.code in STOPPED)
    default = SIGINT if numbers else SIGTERM
    number = next((number for number in numbers if number != SIGINT), default)
    message = stopped[0].report.message if stopped[0].report else DEFAULT_MESSAGE
    return RunInterruptedError(message.removeprefix(f"{Signals(number).name}: "), number)


def _order(failed: RankExit) -> tuple[bool, float]:
    return failed.code != -SIGKILL, failed.report.seconds if failed.report else failed.seconds


def _describe(failed: RankExit) -> str:
    code = failed.code
    if failed.was_ended:
        return "did not respond to the other ranks, and was killed"
    if code == 0:
        return "exited with code 0 while the other ranks needed it"
    if code > 0:
        return f"exited with code {code}"
    is_signal = -code in set(Signals)
    return f"was killed by {Signals(-code).name if is_signal else f'signal {-code}'}"


if __name__ == "__main__":
    main(sys.argv[1:])
