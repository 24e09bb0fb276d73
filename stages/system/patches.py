"""Private names of other packages that this project replaces, and the check that they are what it expects.

A package has one module for its patches, with a tuple ``PATCHES`` that `apply_patches` checks and applies.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import Any

from stages.contracts.errors import StageError


@dataclass(frozen=True)
class Patch:
    """A name of another package that this project replaces or relies on."""

    name: str
    """Module and attribute, for example ``dvc.stage.cache:StageCache._load_cache``."""
    reason: str
    """One sentence that explains why no public name serves."""
    signature: str | None
    """The parameters without annotations, for example ``(self, key, value)``; None skips the check."""
    supported: str
    """The versions of the package that were tried, for example ``3.67.1``."""
    replacement: Callable[..., Any] | None = None
    """The function to call instead, with the original as its first argument; None if the name stays."""

    @property
    def package(self) -> str:
        """Return the distribution that contains the name."""
        return self.name.partition(":")[0].partition(".")[0]

    def find(self) -> Any:
        """Return the object of that name; of an attribute that a class only annotates, the annotation.

        Raises `ImportError` or `AttributeError` if it is missing.
        """
        owner, attribute = self._find_owner()
        annotations = inspect.get_annotations(owner) if isinstance(owner, type) else {}
        return annotations[attribute] if attribute in annotations else resolve_name(self.name)

    def replace(self) -> None:
        """Replace the name in this process."""
        owner, attribute = self._find_owner()
        original, replacement = self.find(), self.replacement
        if replacement is None:
            return

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            return replacement(original, *arguments, **options)

        setattr(owner, attribute, staticmethod(call) if inspect.ismethod(original) else call)

    def _find_owner(self) -> tuple[Any, str]:
        """Return the module or the class that has the name, and the last part of the name."""
        module, _, member = self.name.partition(":")
        parent, _, attribute = member.rpartition(".")
        return resolve_name(f"{module}:{parent}" if parent else module), attribute

    def problem(self) -> str | None:
        """Return one line that describes the mismatch with the installed package; None if it matches.

        A replacement that carries `functools.wraps` has the signature of the original, so the result is the
        same before and after the patch is applied.
        """
        try:
            member = self.find()
            signature = None if self.signature is None else _plain_signature(member)
        except (ImportError, AttributeError):
            mismatch = "does not exist"
        except (TypeError, ValueError):
            mismatch = f"is not a function with the signature {self.signature}"
        else:
            mismatch = f"has the signature {signature}, not {self.signature}"
            if signature == self.signature:
                return None
        title = f"{self.package} {_find_version(self.package)}: {self.name.replace(':', '.')}"
        return f"{title} {mismatch}. Install {self.package} {self.supported}"


def find_problems(patches: Iterable[Patch]) -> list[str]:
    """Return one line for each of *patches* that does not match the installed package."""
    return [problem for patch in patches if (problem := patch.problem())]


def check_patches(patches: Iterable[Patch]) -> None:
    """Raise `StageError` if one of *patches* does not match the installed package."""
    if problems := find_problems(patches):
        raise StageError("\n  ".join(problems))


_replaced: set[str] = set()


@functools.cache
def apply_patches(patches: tuple[Patch, ...]) -> None:
    """Replace the names of *patches* in this process; one that is replaced already stays.

    Raises `StageError` if one of them does not match the installed package. Then no name is replaced.
    """
    check_patches(patches)
    for patch in patches:
        if patch.name not in _replaced:
            patch.replace()
            _replaced.add(patch.name)


def _plain_signature(function: Any) -> str:
    """Return the signature of *function* without annotations; of an operator of PyTorch, the names only."""
    match function:
        case object(_schema=schema):
            return f"({', '.join(argument.name for argument in schema.arguments)})"
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
