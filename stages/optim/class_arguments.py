"""Checks of the arguments that params pass to a class of optimizers or of learning rate schedulers."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stages.contracts import plugins
from stages.contracts.errors import PluginError, closest
from stages.contracts.user_code import explain


def check_class_arguments(
    part: str, kind: str, maker: Any, arguments: Mapping[str, Any], *, hidden: Collection[str]
) -> None:
    """Raise `PluginError`, which lists the accepted arguments, unless *maker* can be called with *arguments*.

    *hidden* are the parameters of *maker* that params cannot set.
    """
    if not callable(maker):
        plugins.check_arguments(part, kind, maker, arguments)
    signature = read_signature(maker)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    accepted = {name: parameter for name, parameter in signature.parameters.items() if name not in hidden}
    unknown = [] if takes_any else [name for name in arguments if name not in accepted]
    named = [
        parameter
        for parameter in accepted.values()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    missing = [
        parameter.name
        for parameter in named
        if parameter.default is parameter.empty and parameter.name not in arguments
    ]
    if not unknown and not missing:
        return
    problems = [f"unknown argument {name!r}.{closest(name, accepted)}" for name in unknown]
    problems += [f"the argument {name!r} is missing" for name in missing]
    raise PluginError(
        f"{part} {kind!r} cannot be built: {'; '.join(problems)}\n"
        f"  accepted: {', '.join(map(_describe, named)) or 'none'}"
    )


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


def _describe(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default}"
