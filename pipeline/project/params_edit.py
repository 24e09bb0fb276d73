"""Edits of params.yaml with the syntax of DVC's ``-S`` that keep its comments and formatting.

The overrides of a deployment, which anyone who reaches Prefect's API can send, have a rule:
`check_overrides`.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import PARSERS
from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.util import load_yaml_guess_indent

from pipeline.project.check import find_late_mistakes
from pipeline.project.git import try_git
from pipeline.project.params import PARAMS, Params, build_params_error, has_key, validate_params
from pipeline.project.snapshot import ABSENT, look_up
from pipeline.project.yaml_files import parse_yaml, read_definition, read_yaml
from stages.contracts.config import flatten
from stages.contracts.errors import ParamsError

NO_KEY = "Could not override"
"""Beginning of the message about a key that the file does not have."""
INTERPOLATION = "${"
"""Beginning of a reference to another key, which DVC would resolve in all keys, also in those not set."""
STAND_IN = "__interpolation__{"
"""The text in place of `INTERPOLATION` while DVC sets overrides."""
CRLF = "\r\n"
MAX_PASSES = 2
"""The second pass restores the values that other keys inherit from one that the first pass has set."""

YAML_SUFFIXES = (".yaml", ".yml")
_KEY = re.compile(r"\w+(\.\w+)+")
"""Matches a key of a section."""
_WITHOUT_JSON = re.compile(r"[{&*]")

ALLOW_CODE = "LEARNER_ALLOW_CODE"
"""Environment variable that allows any override; ``learner serve --allow-code`` sets it."""
LOADER_KEY = "load_data.source.kind"
DEVICE_KEY = "fit.device"
_FILE_KEY = re.compile(r"(^|_)(path|file|dir|directory|folder|root|url|uri|inputs|targets|labels|tokenizer)$")
"""Matches the last part of the keys whose value is a file or an address."""
_REFERENCE_SIGNS = re.compile(r"[/\\:~]")
"""Matches a sign that import paths, paths of files or addresses have, and other texts do not need."""


def override_params(
    overrides: Sequence[str], content: Mapping[str, Any] | None = None, source: str = f"{PARAMS} (unchanged)"
) -> str:
    """Return the text of params.yaml with *overrides*, in the syntax of DVC's -S.

    *content*, read from *source*, are the params before the overrides; by default those of the file. The
    comments, the formatting and the line ends are those of the file. Nothing is written. Raises `ParamsError`
    if the params would not be valid.
    """
    with TemporaryDirectory() as folder:
        draft = Path(folder) / PARAMS.name
        _write_draft(draft, read_yaml(PARAMS) if content is None else content, overrides)
        check_content(read_yaml(draft), Path(source), read_definition())
        text, line_end = _read_lines(PARAMS)
        return _merge_into_text(text, read_yaml(draft)).replace("\n", line_end)


def set_params(overrides: Sequence[str], folder: Path) -> None:
    """Set *overrides*, some as ``FILE:KEY=VALUE``, in the files of the project's copy in *folder*.

    Raises as `apply` does, and `ParamsError` for a link out of the copy, through which DVC would write.
    """
    for name, file_overrides in to_path_overrides(overrides).items():
        draft = folder / name
        if not draft.resolve().is_relative_to(folder.resolve()):
            raise ParamsError(
                f"{name}, which -S changes, is outside of the folder of the project. An experiment needs a "
                "copy of its own: put the file into the project"
            )
        apply(file_overrides, draft)


def apply(overrides: Sequence[str], draft: Path) -> None:
    """Set *overrides*, in the syntax of DVC's -S, in the file *draft*, which keeps its line ends.

    An interpolation in an override is resolved; those in the file stay. Raises `ParamsError` if DVC cannot.
    """
    text, line_end = _read_lines(draft)
    draft.write_text(text.replace(INTERPOLATION, STAND_IN), encoding="utf-8")
    _apply(overrides, draft, draft.name)
    edited = draft.read_text(encoding="utf-8").replace(STAND_IN, INTERPOLATION)
    draft.write_text(edited, encoding="utf-8", newline=line_end)
    if not draft.name.lower().endswith(YAML_SUFFIXES):
        return
    try:
        read_yaml(draft)
    except ParamsError as error:  # DVC drops quotes within braces
        raise ParamsError(
            f"-S {' -S '.join(overrides)}: DVC cannot write {draft.name} back, because a mapping in braces "
            "has a value with a colon. Write it in block style, with one key on each line"
        ) from error


@lru_cache(maxsize=64)
def parse_params(text: str, path: str) -> Any:
    """Return the values in *text*, the content of the params file *path*, read as DVC reads it.

    Do not change them: the next call with the same text returns them too.
    """
    parser = PARSERS[Path(path).suffix.lower()]
    return parse_yaml(text, path) if parser is PARSERS[".yaml"] else parser(text, path)


def override_content(overrides: Sequence[str], text: str, name: str) -> Any:
    """Return the values of the params file *name* with *text* after *overrides* are set. Raises as `apply`.

    DVC sets them in JSON of their sections if that is possible, which takes a fifth of the time.
    """
    sections = _find_sections(overrides, text, name)
    with TemporaryDirectory() as folder:
        draft = Path(folder) / Path(name).name
        if sections is None:
            draft.write_text(text, encoding="utf-8")
            apply(overrides, draft)
            return parse_params(draft.read_text(encoding="utf-8"), name)
        copy = draft.with_name(f"{draft.name}.json")
        copy.write_text(json.dumps(sections), encoding="utf-8")
        _apply(overrides, copy, draft.name)
        edited = json.loads(copy.read_bytes())
    others = {key: value for key, value in parse_params(text, name).items() if key not in sections}
    return {**others, **edited}


def _find_sections(overrides: Sequence[str], text: str, name: str) -> dict[str, Any] | None:
    """Return the sections that *overrides* change in *text*, the content of the params file *name*.

    None if an override reads other sections, if DVC may not write the file back as it is because of braces or
    aliases, or if JSON lacks a type.
    """
    if not name.lower().endswith(YAML_SUFFIXES) or _WITHOUT_JSON.search("".join([text, *overrides])):
        return None
    keys = {re.split(r"[.=@/]", override.lstrip("+~"))[0] for override in overrides}
    sections = {key: value for key, value in parse_params(text, name).items() if key in keys}
    with suppress(TypeError):
        return sections if json.loads(json.dumps(sections)) == sections else None
    return None


def _read_lines(path: Path) -> tuple[str, str]:
    """Return the text of *path* with line feeds, and the line end of the file."""
    text = path.read_bytes().decode("utf-8")
    return text.replace(CRLF, "\n"), CRLF if CRLF in text else "\n"


def _apply(overrides: Sequence[str], draft: Path, name: str) -> None:
    if name == PARAMS.name:
        overrides = _add_pluses(overrides, draft)
    try:
        apply_overrides(draft, list(overrides))
    except Exception as error:  # DVC wraps some errors of Hydra and OmegaConf, which have no common class
        reason = str(error.__cause__ or error).partition("See https:")[0].partition("full_key:")[0]
        hint = ". Correct the key, or add one that is unknown with a plus, as in -S +KEY=VALUE"
        raise ParamsError(
            f"-S {' -S '.join(overrides)}: {' '.join(reason.split())}{hint if NO_KEY in reason else ''}"
        ) from error


def _add_pluses(overrides: Sequence[str], draft: Path) -> list[str]:
    """Return *overrides* with a plus before each known param that *draft* lacks, as DVC adds a key."""
    content: Any = parse_params(draft.read_text(encoding="utf-8"), str(draft))
    keys = [override.partition("=")[0] for override in overrides]
    missing = [key for key in keys if _KEY.fullmatch(key) and look_up(content, key) is ABSENT]
    if not missing:
        return list(overrides)
    params = None
    with suppress(ParamsError):  # reported when the params are checked
        params = validate_params(content, PARAMS)
    added = {key for key in missing if params is not None and has_key(params, key)}
    pairs = zip(keys, overrides, strict=True)
    return [f"+{override}" if key in added else override for key, override in pairs]


def check_content(content: Any, source: Path, definition: Mapping[str, Any]) -> Params:
    """Return the params with *content*, read from *source*.

    Raises `ParamsError` if a run with them and the dvc.yaml *definition* cannot finish.
    """
    params = validate_params(content, source)
    if mistakes := find_late_mistakes(params, content, definition):
        raise build_params_error(source, mistakes)
    return params


def _write_draft(draft: Path, content: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Write *content* with *overrides* to the file *draft*, without comments and formatting."""
    yaml = YAML()
    yaml.representer.ignore_aliases = lambda _: True  # otherwise DVC sets a value under each of its aliases
    try:
        with draft.open("w", encoding="utf-8") as file:
            yaml.dump(content, file)
    except RecursionError as error:
        raise ParamsError(f"{PARAMS}: a value contains itself through a YAML alias. Remove it") from error
    by_file = to_path_overrides(overrides)
    if others := by_file.keys() - {PARAMS.name}:
        raise ParamsError(
            f"-S names {', '.join(sorted(others))}, but sets params of {PARAMS} only. Remove the file name"
        )
    for file_overrides in by_file.values():
        apply(file_overrides, draft)


def _merge_into_text(text: str, wanted: Any) -> str:
    """Return the YAML *text* with the values of *wanted*, and with its comments and formatting.

    Raises `ParamsError` if two keys of *text* share a value, and *wanted* has different ones.
    """
    yaml = _build_yaml(text)
    content = yaml.load(text)
    if content is None:  # nothing but comments
        return text + _dump(yaml, wanted)
    for _ in range(MAX_PASSES):
        _merge(content, parse_yaml(text, PARAMS), wanted)
        text = _dump(yaml, content)
        differing = _find_difference(parse_yaml(text, PARAMS), wanted)
        if differing is None:
            return text
    raise ParamsError(
        f"{PARAMS}: {differing} shares its value with another key through a YAML anchor, so one of them "
        "cannot be changed alone. Write out the values of both"
    )


def _build_yaml(text: str) -> YAML:
    """Return a reader and writer that keeps the formatting of *text*."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1 << 16
    yaml.preserve_quotes = True
    _, step, dash = load_yaml_guess_indent(text)
    yaml.indent(sequence=(step or 2), offset=(dash or 0))
    return yaml


def _dump(yaml: YAML, content: Any) -> str:
    target = io.StringIO()
    yaml.dump(content, target)
    return target.getvalue()


def _merge(
    content: MutableMapping[str, Any], present: Mapping[str, Any], wanted: MutableMapping[str, Any]
) -> None:
    """Set the values of *wanted* in *content*, which has the values *present*."""
    for key in present.keys() - wanted.keys():
        with suppress(KeyError):  # inherited, so that the text still has it
            del content[key]
    for key, value in wanted.items():
        if key not in present and hasattr(content, "insert"):
            content.insert(0, key, value)  # appended, it would follow the blank line that ends a section
        elif isinstance(present.get(key), Mapping) and isinstance(value, MutableMapping):
            _merge(content[key], present[key], value)
        elif key not in present or repr(present[key]) != repr(value):
            content[key] = value


def _find_difference(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return the first key at which *present* and *wanted* differ in value or type; None if they do not.

    Values are compared as text: 1 equals 1.0 and True, and nan differs from itself.
    """
    before, after = flatten(present), flatten(wanted)
    changed = (
        key for key in {**before, **after} if repr(before.get(key, ABSENT)) != repr(after.get(key, ABSENT))
    )
    return next(changed, None)


class _Representer(RoundTripRepresenter):
    """A representer that writes null, for which ruamel.yaml writes an empty value."""


_Representer.add_representer(
    type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise `ParamsError` if *overrides* are not valid, or set code or a file that is not committed.

    The committed params are those of git's HEAD, or params.yaml itself if git does not track it. With
    `ALLOW_CODE`, any valid override may be set.
    """
    is_restricted = not os.environ.get(ALLOW_CODE)
    interpolated = [override for override in overrides if "${" in override]
    if is_restricted and interpolated:  # also of environment variables, which an error would show
        raise _build_error(f"use the interpolation {interpolated[0]!r}")
    edited = parse_yaml(override_params(overrides), PARAMS)
    if not is_restricted or not overrides:
        return
    before = set(_list_texts(read_yaml(PARAMS)))
    committed = {text for _, text in _list_texts(_read_committed())}
    for key, text in _list_texts(edited):
        if (key, text) not in before and text not in committed and _is_reference(key, text):
            raise _build_error(f"set {key} to {text!r}, which the committed {PARAMS} does not have")


def _build_error(problem: str) -> ParamsError:
    return ParamsError(
        f"the overrides of this deployment {problem}. Whoever reaches the API could run code with it. Commit "
        f"it in {PARAMS}, or allow it with `learner serve --allow-code`, or {ALLOW_CODE}=1 for a worker"
    )


def _read_committed() -> Any:
    done = try_git(Path(), "show", f"HEAD:./{PARAMS}")
    return read_yaml(PARAMS) if done.returncode else parse_yaml(done.stdout, f"{PARAMS} of HEAD")


def _list_texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in *value*, at any depth, with its dotted key; elements of a list have its key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _list_texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _list_texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _is_reference(key: str, text: str) -> bool:
    if key == DEVICE_KEY:
        return False
    is_file = _FILE_KEY.search(key.rpartition(".")[2]) is not None
    return key == LOADER_KEY or is_file or _REFERENCE_SIGNS.search(text) is not None
