"""params.yaml with some values set as by DVC's ``-S``: its comments and its form stay."""

import io
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.util import load_yaml_guess_indent

from pipeline.check import late_mistakes
from pipeline.params import not_valid, read_params
from pipeline.yaml_files import read_yaml
from stages.contracts.errors import ParamsError

PARAMS = Path("params.yaml")
NO_KEY = "Could not override"
"""Begins the message about a key that the file does not have."""

Edit = Callable[[dict[str, Any]], None]


def overridden(overrides: Sequence[str], edit: Edit | None = None) -> str:
    """What params.yaml says after *edit* of its content and with *overrides*, as of DVC's -S.

    Nothing is written. Raises `ParamsError` where the params would not be valid.
    """
    with TemporaryDirectory() as folder:
        draft = Path(folder) / PARAMS.name
        content = read_yaml(PARAMS)
        if edit:
            edit(content)
        _write_draft(draft, content, overrides)
        try:
            check_draft(draft, read_yaml(Path("dvc.yaml")))
        except ParamsError as error:
            raise ParamsError(str(error).replace(str(draft), f"{PARAMS}, which stays as it is,")) from error
        return _edited(PARAMS.read_text(encoding="utf-8"), read_yaml(draft))


def apply(overrides: Sequence[str], draft: Path) -> None:
    """Set *overrides*, as of DVC's -S, in the file *draft*. Raises `ParamsError` if that is impossible."""
    try:
        apply_overrides(draft, list(overrides))
    except Exception as error:  # DVC wraps some errors of Hydra and OmegaConf, which have no common class
        reason = str(error.__cause__ or error).partition("See https:")[0].partition("full_key:")[0]
        hint = f". Add a key that {draft.name} does not have with a plus, as in -S +fit.keep.last=3"
        raise ParamsError(
            f"-S {' -S '.join(overrides)}: {' '.join(reason.split())}{hint if NO_KEY in reason else ''}"
        ) from error


def check_draft(draft: Path, definition: Mapping[str, Any]) -> None:
    """Raise `ParamsError` if a run with the params in *draft* and the dvc.yaml *definition* cannot finish."""
    params = read_params(draft)
    if mistakes := late_mistakes(params, read_yaml(draft), definition):
        raise not_valid(draft, mistakes)


def _write_draft(draft: Path, content: dict[str, Any], overrides: Sequence[str]) -> None:
    """What params.yaml is to say, with neither its comments nor its form."""
    with draft.open("w", encoding="utf-8") as file:
        YAML().dump(content, file)
    by_file = to_path_overrides(overrides)
    if others := by_file.keys() - {PARAMS.name}:
        raise ParamsError(f"-S sets params of {PARAMS}, not of {', '.join(sorted(others))}")
    for mine in by_file.values():
        apply(mine, draft)


def _edited(text: str, wanted: Any) -> str:
    """The YAML *text*, with its comments and its form, changed where it does not say what is *wanted*."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1 << 16
    yaml.preserve_quotes = True
    _, step, dash = load_yaml_guess_indent(text)
    yaml.indent(sequence=(step or 2), offset=(dash or 0))
    content = yaml.load(text)
    target = io.StringIO()
    if content is None:  # nothing but comments
        yaml.dump(wanted, target)
        return text + target.getvalue()
    _merge(content, wanted)
    yaml.dump(content, target)
    return target.getvalue()


def _merge(content: MutableMapping[str, Any], wanted: MutableMapping[str, Any]) -> None:
    for key in [key for key in content if key not in wanted]:
        del content[key]
    for key, value in wanted.items():
        there = content.get(key)
        if isinstance(there, MutableMapping) and isinstance(value, MutableMapping):
            _merge(there, value)
        elif key not in content and hasattr(content, "insert"):
            content.insert(0, key, value)  # last, it would come after the blank line that ends a section
        elif there != value or isinstance(there, bool) != isinstance(value, bool):
            content[key] = value


class _Representer(RoundTripRepresenter):
    """Writes null where ruamel writes nothing."""


_Representer.add_representer(
    type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
)
