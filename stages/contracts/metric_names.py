"""Names of metrics, which are also the names of files."""

import os
from collections.abc import Iterable

from stages.contracts.errors import BuilderError

MAX_NAME_BYTES = 200
"""The longest name; a file system has 255 bytes for it, an extension, and the marks of temporary files."""


def format_file_name(metric: str, extension: str) -> str:
    """Return *metric* with spaces replaced by ``_``, as Burn does, and the *extension*.

    Raises `BuilderError` for a name that leads out of its folder, that a table cannot contain, or that is too
    long for a file.
    """
    if not metric or ".." in metric or any(each in "/\\" or each < " " for each in metric):
        raise BuilderError(
            f"a metric is named {metric!r}, which cannot be the name of a file: rename it, without slashes, "
            "'..' and control characters"
        )
    if (size := len(os.fsencode(metric))) > MAX_NAME_BYTES:
        raise BuilderError(
            f"a metric is named {metric!r:.40}…, which has {size} bytes: use a name of at most "
            f"{MAX_NAME_BYTES}"
        )
    return f"{metric.replace(' ', '_')}.{extension}"


def check_file_names(metrics: Iterable[str]) -> None:
    """Raise `BuilderError` if one of *metrics* cannot be the name of a file, or two have the same file."""
    others: dict[str, str] = {}
    for metric in metrics:
        other = others.setdefault(format_file_name(metric, "log"), metric)
        if other != metric:
            raise BuilderError(
                f"metrics {other!r} and {metric!r} would share the file {format_file_name(metric, 'log')}: "
                "rename one of them"
            )
