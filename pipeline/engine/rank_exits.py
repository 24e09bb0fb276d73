"""The exits of ranks, and what they mean for the run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals

from pipeline.engine.rank_process import log_of
from pipeline.error_reports import ERROR_PREFIX, ErrorReport, find_error, read_lines
from stages.contracts.errors import RankLostError, RunInterruptedError, StageError

STOPPED = {128 + number: number for number in (SIGTERM, SIGINT, SIGHUP)}
"""The signal for each exit code of a rank that was stopped and has saved its state."""
DEFAULT_MESSAGE = "the ranks were stopped. Run the same command again to resume"
MAX_LOG_LINES = 20


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
    def is_consequence(self) -> bool:
        """Return whether the rank failed because another one did.

        It lost the connection to it, or was killed by the launcher before it reported an error.
        """
        return self.is_lost or self.was_ended

    @property
    def was_ended(self) -> bool:
        """Return whether the launcher ended the rank before it reported an error."""
        return -self.code in self.sent and self.report is None

    @property
    def is_lost(self) -> bool:
        """Return whether the rank reported that it lost the connection to another one."""
        return self.report is not None and self.report.code == RankLostError.exit_code


def find_failure(exits: Collection[RankExit]) -> RankExit | None:
    """Return the exit of the rank that failed first; None if no rank failed.

    The others usually fail because they lose the connection to it. A rank that was killed is therefore the
    first one, even if another one reported its error sooner than the exit was seen. If all that report an
    error have lost a connection, it is that to a rank that exited with code 0 or did not respond.
    """
    failed = [each for each in exits if each.has_failed]
    causes = [each for each in failed if not each.is_consequence]
    lost = [each for each in failed if each.is_lost]
    silent = [each for each in exits if each.code == 0 or each.was_ended] if lost else []
    return min(causes or silent or lost, key=_order, default=None)


def find_stop(exits: Sequence[RankExit]) -> RankExit | None:
    """Return the exit that describes the stop of all ranks best: with a signal's code, and rank 0's message.

    A rank that stopped because another one received a signal has the code of SIGINT.
    """
    stopped = [each for each in exits if each.code != 0]
    codes = sorted(each.code for each in stopped if each.code in STOPPED)
    known = [code for code in codes if code != 128 + SIGINT] or codes
    first = min(stopped, key=lambda each: each.rank, default=None)
    return first and replace(first, code=known[0] if known else first.code)


def build_failure(failed: RankExit, device: str, folder: Path) -> StageError:
    """Return the error for the rank that failed first, on *device*, with its log in *folder*."""
    log = log_of(folder, failed.rank)
    lines = read_lines(log) if failed.rank > 0 and log.exists() else []
    reported = failed.report.message.removeprefix(ERROR_PREFIX) if failed.report else find_error(lines)
    place = f"\n  log: {log}" if lines else ""
    tail = "" if reported else "".join(f"\n  {line}" for line in lines[-MAX_LOG_LINES:])
    return StageError(f"rank {failed.rank} ({device}): {reported or _describe(failed)}{place}{tail}")


def build_interruption(stopped: RankExit) -> RunInterruptedError:
    """Return the error for ranks that were stopped and have saved, with the message of one of them."""
    number = STOPPED.get(stopped.code, SIGTERM)
    message = stopped.report.message if stopped.report else DEFAULT_MESSAGE
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
    known = -code in set(Signals)
    return f"was killed by {Signals(-code).name if known else f'signal {-code}'}"
