"""The exceptions that this project raises.

* StageError                 exit code 1: base class, for a run that cannot continue
  * DataError                a data source or its content is not usable
  * PluginError              a name in params.yaml does not lead to a usable object
  * RecordError              a record is truncated, corrupt, or in an unknown format
  * CheckpointError          a requested checkpoint is missing or corrupt
  * BuilderError             the options of a learner contradict each other
  * NonFiniteError           a loss or gradient is NaN or infinite (stages.optim)
  * StageFailedError         a stage that DVC ran failed
  * UserCodeError            the user's own code raised an exception
  * RankLostError            exit code 3: a rank of the run cannot reach another one, which has its own error
  * RunInUseError            another process uses the run store, or another exclusive resource
  * RunInterruptedError      exit code 128 + signal, or 130: the run was asked to stop and saved its state
  * ParamsError              exit code 2: params.yaml or an option is not valid
* KilledError                a SystemExit with code 130: the kill key was pressed in the live view

A message names the problem, its place, the value found, and what to do.
"""

from collections.abc import Collection
from difflib import get_close_matches
from signal import SIGINT


class StageError(Exception):
    """The base class of errors that end a command with a message and without a traceback."""

    exit_code = 1


class ParamsError(StageError):
    """An invalid value in params.yaml, in dvc.yaml or in an option."""

    exit_code = 2


class DataError(StageError):
    """A data source, or its content, that is not usable."""


class PluginError(StageError):
    """A name in params.yaml that is not built in, registered or importable, or that is of the wrong kind."""


class RecordError(StageError):
    """A record that is truncated, corrupt, or in an unknown format."""


class CheckpointError(StageError):
    """A requested checkpoint that is missing or corrupt."""


class BuilderError(StageError):
    """Options of a learner that contradict each other or the model."""


class StageFailedError(StageError):
    """A stage that DVC ran and that failed."""


class UserCodeError(StageError):
    """An exception in the user's own code; the message contains its file and line.

    *is_mistake* is true if a retry would raise the same exception.
    """

    def __init__(self, message: str, *, is_mistake: bool = True) -> None:
        super().__init__(message)
        self.is_mistake = is_mistake


class RankLostError(StageError):
    """A rank that cannot reach another one, usually because that one has failed."""

    exit_code = 3


class RunInUseError(StageError):
    """A run store that another process, or another run in this process, uses."""


class RunInterruptedError(StageError):
    """A run that was asked to stop; its state is saved, but it has no result.

    *number* is the number of the signal; a key press counts as SIGINT.
    """

    def __init__(self, message: str, number: int = SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class KilledError(SystemExit):
    """The exit after the kill key was pressed in the live view.

    It is a `SystemExit` with code 130, so that the program ends without a traceback.
    """

    def __init__(self) -> None:
        super().__init__(128 + SIGINT)

    def __str__(self) -> str:
        return "killed by the key k; the last checkpoint remains"


def closest(name: str, names: Collection[str]) -> str:
    """Return a question such as " Did you mean 'cnn'?", or an empty string if none is similar."""
    match = get_close_matches(name, list(names), n=1)
    return f" Did you mean {match[0]!r}?" if match else ""
