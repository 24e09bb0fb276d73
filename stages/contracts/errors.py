"""Everything this project raises on purpose.

* StageError                 exit code 1: the run cannot go on as it is
  x DataError                a data source, or what it holds, is not usable
  x PluginError              a name in params.yaml that leads to nothing usable
  x RecordError              a file of state that is cut, altered or not ours
  x CheckpointError          an epoch that was asked for and is not there, or is not whole
  x BuilderError             a learner that could not work, told before it starts
  x NonFiniteError           a NaN or infinity that would have reached the weights (stages.optim)
  x StageFailedError         a stage that DVC ran, and that did not end well
  x UserCodeError            an exception that the user's own code raised, explained by the user's frames
  x RunInUseError            a run store, or what else one run has to itself, that another one holds
  x RunInterruptedError      exit code 130, or 128 + the signal: somebody asked the run to stop, and it did
  * ParamsError              exit code 2: params.yaml (or an option) does not say something valid
* KilledError                a SystemExit with code 130: the key to kill was pressed in the live view

A message says what, where, what is there, and what to do.
"""

from collections.abc import Collection
from difflib import get_close_matches
from signal import SIGINT


class StageError(Exception):
    """What ends a run with a message and no traceback."""

    exit_code = 1


class ParamsError(StageError):
    """params.yaml, dvc.yaml or an option says something that cannot be meant."""

    exit_code = 2


class DataError(StageError):
    """A data source, or what it holds, is not usable."""


class PluginError(StageError):
    """A name in params.yaml that is neither built in, nor registered, nor importable, or does not fit."""


class RecordError(StageError):
    """A file of state that is cut short, altered, or in a form that is not ours."""


class CheckpointError(StageError):
    """An epoch that was asked for and is not there, or is not whole."""


class BuilderError(StageError):
    """A learner that could not work, told before it starts."""


class StageFailedError(StageError):
    """A stage that DVC ran, and that did not end well."""


class UserCodeError(StageError):
    """An exception that the user's own code raised; the message names its file and line.

    *is_mistake* tells that a retry would raise it again.
    """

    def __init__(self, message: str, *, is_mistake: bool = True) -> None:
        super().__init__(message)
        self.is_mistake = is_mistake


class RunInUseError(StageError):
    """A run store that another process, or another run in this one, works in."""


class RunInterruptedError(StageError):
    """Somebody asked the run to stop, and it did: what it has so far is no result.

    *number* is that of the signal; a key that was pressed counts as SIGINT.
    """

    def __init__(self, message: str, number: int = SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class KilledError(SystemExit):
    """The key to kill was pressed in the live view.

    A `SystemExit` with code 130, so that a program ends without a traceback.
    """

    def __init__(self) -> None:
        super().__init__(128 + SIGINT)

    def __str__(self) -> str:
        return "killed by the key k; the last checkpoint remains"


def closest(name: str, known: Collection[str]) -> str:
    """A question like " Did you mean 'cnn'?", or nothing where no *known* name is near *name*."""
    match = get_close_matches(name, list(known), n=1)
    return f" Did you mean {match[0]!r}?" if match else ""
