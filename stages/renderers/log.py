"""The plain renderer's lines as log records: for runs whose output somebody else collects."""

import logging

from stages.renderers.plain import INTERVAL_SECONDS, PlainRenderer


class LogRenderer(PlainRenderer):
    """One record of level INFO an epoch, and one an interval within a long epoch."""

    def __init__(
        self,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__(interval_seconds)
        self._logger = logger

    def write(self, line: str) -> None:
        """Log *line*."""
        self._logger.info("%s", line)
