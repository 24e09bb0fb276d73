"""The five stages by name, in the order in which they run, with the version of each."""

from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.contracts.errors import ParamsError, closest

VERSIONS = {
    "create-artifact-dir": create_artifact_dir.VERSION,
    "load-data": load_data.VERSION,
    "build-learner": build_learner.VERSION,
    "fit": fit.VERSION,
    "save-model": save_model.VERSION,
}


def version_of(name: str) -> str:
    """Return the version of stage *name*; raise `ParamsError` if there is no such stage."""
    if name not in VERSIONS:
        raise ParamsError(
            f"there is no stage {name!r}. Use one of {', '.join(VERSIONS)}.{closest(name, VERSIONS)}"
        )
    return VERSIONS[name]
