"""Which stages a flow brings up to date for the ones that it is asked for."""

from collections.abc import Sequence

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.stage_registry import VERSIONS, version_of
from stages.contracts.errors import StageFailedError


def select_stages(targets: Sequence[str]) -> list[str]:
    """*targets* and the stages that they depend on, in order; all stages where there are no targets.

    Raises `ParamsError` for a name that no stage has.
    """
    for name in targets:
        version_of(name)
    if not targets:
        return list(VERSIONS)
    try:
        with Repo() as repo:
            graph = repo.index.graph
            wanted = [each for each in graph if getattr(each, "name", None) in targets]
            for each in wanted:  # an edge goes from a stage to what it depends on
                wanted += [below for below in graph[each] if below not in wanted]
            names = {each.name for each in wanted}
    except DvcException as error:
        raise StageFailedError(str(error)) from error
    return [name for name in VERSIONS if name in names]
