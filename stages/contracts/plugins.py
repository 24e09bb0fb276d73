"""Lookup of parts by name: built-in names first, then entry points, then import paths.

``params.yaml`` can name any importable code, so it must be trusted like code. Optional dependencies are
imported when they are used.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import BuilderError, PluginError, closest
from stages.contracts.user_code import explain, user_frames


@dataclass(frozen=True)
class OptionalAttributes:
    """A base of dataclasses whose fields are the optional attributes of an object, with their defaults."""

    @classmethod
    def of(cls, owner: object) -> Self:
        """Return those of *owner*."""
        attributes = {field.name: getattr(owner, field.name, MISSING) for field in fields(cls)}
        return cls(**{name: value for name, value in attributes.items() if value is not MISSING})


def check_object(value: Any, part: str, example: str, *needs: str) -> None:
    """Raise `BuilderError` unless *value*, passed as *part*, is an object with one of the attributes *needs*.

    *example* is an expression for such an object.
    """
    if isinstance(value, type) or inspect.isroutine(value):
        kind = "class" if isinstance(value, type) else "function"
        problem, example = f"the {kind} {value.__name__}", f"{value.__name__}(…)"
    elif isinstance(value, str):
        problem = f"the text {value!r}"
    elif not any(hasattr(value, name) for name in needs):
        problem = f"the type {type(value).__name__}"
    else:
        return
    raise BuilderError(f"the {part} must be an object such as {example}; found {problem}")


_OWN_PACKAGES = ("pipeline", "stages")
"""Packages of which a checkout of this project in the current folder may have another copy."""


def find(part: str, name: str, built_in: Mapping[str, str]) -> Any:
    """Return the object named *name*; *built_in* maps short names to import paths.

    Raises `PluginError` if there is no such object or its module cannot be imported.
    """
    path = import_path(part, name, built_in)
    is_path, folder = ":" in name, str(Path.cwd())
    if is_path and folder not in sys.path:
        sys.path.append(folder)  # the user's own modules are next to params.yaml
    module = _import(part, path)
    if is_path:
        _check_origin(part, path, module)
    return _find_attribute(part, path, module)


def import_path(part: str, name: str, built_in: Mapping[str, str]) -> str:
    """Return the import path of *name* without importing it.

    Raises `PluginError` for an unknown short name and for an import path that is malformed.
    """
    if ":" in name:
        return _check_path(part, name)
    if name in built_in:
        return built_in[name]
    registered = {point.name: point.value for point in entry_points(group=f"stages.{part}s")}
    if name in registered:
        return registered[name]
    names = sorted({*built_in, *registered})
    raise PluginError(
        f"no {part} is named {name!r}.{closest(name, names)}\n"
        f"    built in or registered: {', '.join(names) or 'none'}\n"
        f"    for your own, write its import path, for example 'my_lab.parts:{_class_name(name)}'"
    )


def name_validator(part: str, built_in: Mapping[str, str]) -> Callable[[Use], Use]:
    """Return a pydantic validator: a `Use` of *part* must name a built-in, a registered or an import path."""

    def check(use: Use) -> Use:
        try:
            import_path(part, use.kind, built_in)
        except PluginError as error:
            raise ValueError(str(error)) from None
        return use

    return check


def build(part: str, name: str, maker: Any, arguments: Mapping[str, Any]) -> Any:
    """Call *maker* with *arguments*. Raises `PluginError`, which lists its parameters, if they do not fit."""
    check_arguments(part, name, maker, arguments)
    return maker(**arguments)


def build_callable(
    part: str,
    use: Use,
    built_in: Mapping[str, str],
    check: Callable[[Any], Any],
    offered: Mapping[str, Any] | None = None,
) -> Any:
    """Return what *check* returns for the object that *use* names: an instance of a class, or a function.

    A class is built with the arguments in *use*, and those of *offered* that it accepts; a function receives
    its arguments at each call, after its others. Raises `PluginError` if it cannot be built.
    """
    maker, arguments = find(part, use.kind, built_in), arguments_of(use)
    if isinstance(maker, type):
        maker = build(part, use.kind, maker, select_accepted(maker, offered or {}) | arguments)
    elif arguments:
        maker = partial(maker, **arguments)
    try:
        return check(maker)
    except BuilderError as error:
        raise PluginError(f"{part} {use.kind!r}: {error}") from None


def check_arguments(
    part: str, name: str, maker: Any, arguments: Mapping[str, Any], *, hidden: Collection[str] = ()
) -> None:
    """Raise `PluginError`, which lists the accepted arguments, unless *maker* can be called with *arguments*.

    *hidden* are the parameters of *maker* that params cannot set.
    """
    if not callable(maker):
        raise PluginError(
            f"{part} {name!r} must name a class or a function; found {type(maker).__name__} {maker!r:.80}"
        )
    parameters = read_signature(maker).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    accepted = {
        parameter.name: parameter.replace(annotation=parameter.empty)
        for parameter in parameters
        if parameter.name not in hidden
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    problems = [
        f"unknown argument {unknown!r}.{closest(unknown, accepted)}"
        for unknown in arguments
        if not takes_any and unknown not in accepted
    ]
    problems += [
        f"the argument {parameter.name!r} is missing"
        for parameter in accepted.values()
        if parameter.default is parameter.empty and parameter.name not in arguments
    ]
    if problems:
        raise PluginError(
            f"{part} {name!r} cannot be built: {'; '.join(problems)}\n"
            f"  accepted: {', '.join(map(str, accepted.values())) or 'none'}"
        )


def select_accepted(maker: Any, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *offered* arguments that are parameters of *maker*."""
    if not callable(maker):
        return {}
    names = read_signature(maker).parameters
    return {name: value for name, value in offered.items() if name in names}


def _import(part: str, path: str) -> ModuleType:
    module_name = path.partition(":")[0]
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise _import_error(f"{part} {path!r}", module_name, error) from error


def _find_attribute(part: str, path: str, module: ModuleType) -> Any:
    module_name, _, attribute = path.partition(":")
    member: Any = module
    for name in attribute.split("."):
        try:
            member = getattr(member, name)
        except AttributeError:
            public = [name for name in vars(member) if not name.startswith("_")]
            raise PluginError(
                f"{part} {path!r} cannot be found: {module_name!r} imports, "
                f"but has no {attribute!r}.{closest(attribute, public)}"
            ) from None
    return member


def _check_origin(part: str, path: str, module: ModuleType) -> None:
    """Raise `PluginError` if *module* is another one than the module of that name in the current folder."""
    base = Path(*path.partition(":")[0].split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    local_files = [file.resolve() for file in files if file.is_file() and base.parts[0] not in _OWN_PACKAGES]
    origin = vars(module).get("__file__")  # a built-in module has none
    if local_files and origin and Path(origin).resolve() not in local_files:
        raise PluginError(
            f"{part} {path!r} is found in {origin}: installed modules come first, so {local_files[0]} is not "
            "imported. Rename your module"
        )


def _check_path(part: str, path: str) -> str:
    module_name, _, attribute = path.partition(":")
    names = [*module_name.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names):
        raise PluginError(
            f"{part} {path!r} is not an import path. Write 'package.module:Name', for example "
            "'my_lab.parts:Name'"
        )
    return path


def _import_error(what: str, module_name: str, error: BaseException) -> PluginError:
    """Return the error for *what*, whose module does not exist or raised *error* on import."""
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    if missing and f"{module_name}.".startswith(f"{missing}.") and not user_frames(error):
        return PluginError(
            f"{what} cannot be imported: {type(error).__name__}: {error}.\n"
            f"  Install the module {module_name!r}, or put it next to params.yaml"
        )
    advice = f"\n  Install {missing.partition('.')[0]!r}, or correct the name" if missing else ""
    explained = explain(error).replace("\n", "\n  ")
    return PluginError(f"{what} cannot be imported: {explained}{advice}")


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.replace("-", "_").split("_")) or "Name"


def load_extra(module: str, extra: str, user: str) -> Any:
    """Import and return *module*, which the extra *extra* of learner-pipeline installs.

    *user* names the part that needs it in the error message. Raises `PluginError` if *module* cannot be
    imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, extra, user, f"cannot be imported: {error}") from error


def check_extra(module: str, extra: str, user: str) -> None:
    """Raise `PluginError`, as `load_extra` does, if *module* is not installed; it is not imported."""
    if find_spec(module.partition(".")[0]) is None:
        raise _missing(module, extra, user, "is not installed")


def _missing(module: str, extra: str, user: str, reason: str) -> PluginError:
    name = "tensorboard" if extra == "tensorboard" else module.partition(".")[0]
    return PluginError(f"{user} needs {name}, which {reason}. Run `pip install 'learner-pipeline[{extra}]'`")


def call_class(part: str, kind: str, call: Callable[[], Any]) -> Any:
    """Return the result of *call*, which builds the *part* named *kind*; `PluginError` for what it raises."""
    try:
        return call()
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, AssertionError) as error:
        explained = explain(error).replace("\n", "\n  ")
        raise PluginError(f"{part} {kind!r} cannot be built: {explained}") from error


def read_signature(maker: Any) -> inspect.Signature:
    """Return the signature of *maker*; any keyword arguments if C code does not provide one."""
    try:
        return inspect.signature(maker)
    except ValueError:
        return inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)])
