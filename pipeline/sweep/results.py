"""The comparison of an experiment with a point, by its files in git.

The sweep stores no list of finished points, which could become stale.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.engine.frozen_inputs import FrozenProject, parse_params
from pipeline.engine.git import try_git
from pipeline.params_edit import apply, check_draft
from pipeline.sweep.points import Point
from stages.contracts.errors import ParamsError

PARAMS = "params.yaml"


def params_of(base: FrozenProject, point: Point) -> dict[str, Any]:
    """Return the content of each params file that *point* changes, by its name.

    Raises `ParamsError` if the params would not be valid.
    """
    found = {}
    with TemporaryDirectory() as folder:
        for name, overrides in point.overrides:
            text = base.text(name)
            if text is None:
                raise ParamsError(f"git does not track {name}, which -S changes. Run `git add {name}`")
            draft = Path(folder) / Path(name).name
            draft.write_text(text, encoding="utf-8")
            apply(overrides, draft)
            found[name] = parse_params(draft.read_text(encoding="utf-8"), name)
            if name == PARAMS:
                _check(draft, base.content("dvc.yaml"))
    return found


def is_result(base: FrozenProject, commit: str, params: Mapping[str, Any]) -> bool:
    """Return whether the experiment *commit* has these *params*, and all other inputs are those of *base*."""
    if any(base.content(name, commit) != content for name, content in params.items()):
        return False
    stages = (base.content("dvc.lock", commit).get("stages") or {}).values()
    if not stages or _differ(base, commit, ["dvc.yaml", *_sources(stages)]):
        return False
    recorded = [
        each for stage in stages for each in (stage.get("params") or {}).items() if each[0] not in params
    ]
    return all(_has(base.content(name), values) for name, values in recorded)


def _sources(stages: Any) -> Iterator[str]:
    """Yield the inputs of the stages that no stage writes and git may have, and their ``.dvc`` files."""
    made = {out["path"] for stage in stages for out in stage.get("outs") or []}
    for path in {dep["path"] for stage in stages for dep in stage.get("deps") or []} - made:
        inside = ":" not in path and not path.startswith("/") and ".." not in PurePosixPath(path).parts
        if inside and not any(PurePosixPath(path).is_relative_to(each) for each in made):
            yield from (path, f"{path}.dvc")


def _differ(base: FrozenProject, commit: str, paths: list[str]) -> bool:
    command = ["--literal-pathspecs", "diff", "--quiet", base.commit, commit, "--", *paths]
    return try_git(base.root, *command).returncode != 0


def _has(content: Any, values: Mapping[str, Any]) -> bool:
    return all(_value(content, key) == value for key, value in values.items())


def _value(content: Any, key: str) -> Any:
    for part in [key] if isinstance(content, dict) and key in content else key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _check(draft: Path, definition: Mapping[str, Any]) -> None:
    try:
        check_draft(draft, definition)
    except ParamsError as error:
        raise ParamsError(str(error).replace(str(draft), PARAMS)) from error
