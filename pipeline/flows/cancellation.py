"""A cancelled run goes from Cancelling to Cancelled, also while a stage defers signals.

Prefect's runner announces a cancel before it sends SIGTERM, and the run accepts that only if Prefect's own
handler of SIGTERM is installed. Otherwise the run reports itself as Crashed first. A stage installs a handler
that calls Prefect's one later, so one name of Prefect is replaced
(`prefect._internal.control_listener.commit_control_intent_and_ack`); a Prefect without it is left as it is.
"""

import signal
from collections.abc import Callable
from typing import Any

from prefect._internal import control_listener

from pipeline.engine.signals import DeferredSignals

NAME = "commit_control_intent_and_ack"
_commit: Callable[..., bool] | None = getattr(control_listener, NAME, None)


def accept_cancellation() -> None:
    """Have this process accept an announced cancel while a stage defers signals."""
    if _commit is not None:
        setattr(control_listener, NAME, _commit_deferred)


def _commit_deferred(
    commit_intent: Callable[[], None],
    clear_intent: Callable[[], None],
    send_ack: Callable[[], None],
    trigger_cancel: Callable[[], None] | None = None,
) -> bool:
    """Commit the announced intent if the deferring handler is installed, as Prefect does for its own one."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    if not isinstance(getattr(handler, "__self__", None), DeferredSignals):
        return bool(_commit and _commit(commit_intent, clear_intent, send_ack, trigger_cancel))
    commit_intent()
    try:
        send_ack()
    except OSError:
        clear_intent()
        return False
    return True
