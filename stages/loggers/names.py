"""A metric's name as the name of its file, and back."""

from stages.contracts.errors import BuilderError


def file_name(metric: str, extension: str) -> str:
    """*metric* with its spaces as ``_``, and nothing else changed, as Burn does.

    Raises `BuilderError` for a name that would lead out of its folder, or that no table could hold.
    """
    if not metric or ".." in metric or any(each in "/\\" or each < " " for each in metric):
        raise BuilderError(
            f"a metric is called {metric!r}, and that is no name for a file: "
            "leave out slashes, '..' and control characters"
        )
    return f"{metric.replace(' ', '_')}.{extension}"


def metric_name(file_name: str) -> str:
    """The metric of a file. Each ``_`` is taken for a space, so a real one comes back as a space."""
    return file_name.rpartition(".")[0].replace("_", " ")
