"""The body of a stage within a Prefect task run: lines logged, progress shown, GPUs claimed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import TextIOBase
from logging import Logger, LoggerAdapter
from typing import TYPE_CHECKING

from prefect import get_run_logger

from pipeline.engine.stage_run import run_stage
from pipeline.flows.gpu_limit import gpu_slots
from pipeline.flows.progress import ProgressRenderer
from stages.contracts.events import Renderer
from stages.contracts.renderers import Renderers
from stages.renderers import LogRenderer

if TYPE_CHECKING:
    RunLogger = Logger | LoggerAdapter[Logger]


class _Lines(TextIOBase):
    """A text file whose lines become log records."""

    def __init__(self, logger: "RunLogger") -> None:
        self._logger = logger
        self._rest = ""

    def write(self, text: str) -> int:
        """Log every line that *text* ends."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._logger.info("%s", line)
        return len(text)

    def end(self) -> None:
        """Log what no line end has followed."""
        if self._rest:
            self.write("\n")


@contextmanager
def _logged(logger: "RunLogger") -> Iterator[None]:
    """What the block prints to standard output is logged instead."""
    lines = _Lines(logger)
    with redirect_stdout(lines):
        yield
    lines.end()


def run_recorded(name: str, renderer: Renderer | None = None) -> None:
    """Do what stage *name* does, shown by the task run that this is called in, and by *renderer*.

    It trains while it holds its slots of the concurrency limit ``gpu``, as many as it uses GPUs.
    """
    logger = get_run_logger()
    with ExitStack() as stack:
        stack.enter_context(_logged(logger))
        if name == "fit":
            stack.enter_context(gpu_slots(logger))
            shown = ProgressRenderer.of_this_run(logger)
            renderer = Renderers([each for each in (LogRenderer(logger), shown, renderer) if each])
        run_stage(name, renderer)
