"""The rule of tensors: one that a program's default device must not place names its device."""

import ast
from collections.abc import Iterator

from source_tree import Finding, SourceTree

CREATORS = (
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "sparse_coo_tensor", "tensor", "zeros"),
)
"""The functions of torch that place a new tensor on the default device of the program."""
MODELS = "stages/models/"
"""The modules whose tensors belong to a model, which its program may create on any device."""


def new_tensors_name_their_device(tree: SourceTree) -> Iterator[Finding]:
    """A tensor of the library, but not of a model, is on the device that its creator names."""
    for module in tree.modules("stages"):
        if module.path.startswith(MODELS):
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=name)) if name in CREATORS:
                    if not any(keyword.arg == "device" for keyword in node.keywords):
                        message = f"torch.{name} has no device: it would be the default of the program"
                        yield Finding(module.path, node.lineno, message)


RULES = (new_tensors_name_their_device,)
