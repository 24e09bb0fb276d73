"""All rules. A rule is a function of the tree of sources whose name is its promise."""

from collections.abc import Iterator

import import_rules
import package_rules
import page_rules
import prose_rules
import tensor_rules
from source_tree import SourceTree

RULES = (
    *prose_rules.RULES,
    *import_rules.RULES,
    *package_rules.RULES,
    *page_rules.RULES,
    *tensor_rules.RULES,
)


def check(tree: SourceTree) -> Iterator[str]:
    """Yield a line for each place in *tree* that breaks a rule, with the name of the rule."""
    for rule in RULES:
        for path, line, message in rule(tree):
            yield f"{path}:{line}: {message} [{rule.__name__}]"
