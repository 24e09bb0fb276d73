"""The mutants of a source file: the operators of mutmut and two more, without changes that are not behavior.

Not mutated are annotations, decorators, docstrings, overloads, ``if TYPE_CHECKING`` blocks, type aliases,
``strict`` of `zip`, which is an assertion, calls of a logger, and the text of an error.
"""

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

TEXTS = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)
LOGS = {"log", "logger", "logging", "warnings"}
TYPES = {"TypeVar", "ParamSpec", "NewType", "cast"}
NOT_CALLED_WITH_LESS = {"len", "isinstance", "issubclass"}
"""Functions that raise `TypeError` if an argument is missing; that would test Python."""


@dataclass(frozen=True)
class Mutant:
    """One change to one source file."""

    file: str
    function: str
    """Qualified name of the function that is changed; empty outside of functions."""
    operator: str
    lines: tuple[int, int]
    """First and last line of the statement, from 1."""
    before: str
    """The changed lines, without indentation, joined by a space."""
    after: str
    span: tuple[int, int] = field(repr=False)
    replacement: str = field(repr=False)
    key: str
    """Hash of all that identifies the mutant in this version of its function; line numbers do not count."""

    def apply(self, source):
        """Return the *source* of the file with this change."""
        return splice(source, self.span, self.replacement)


def splice(source, span, replacement):
    """Return *source* with the bytes of *span* replaced; white space at the beginning of *span* stays."""
    content = source.encode()
    old = content[span[0] : span[1]]
    blank = old[: len(old) - len(old.lstrip())]
    return (content[: span[0]] + blank + replacement.encode() + content[span[1] :]).decode()


def find_mutants(root, file):
    """Return every mutant of *file*, a path relative to *root*, in the order of the source."""
    source = (Path(root) / file).read_text()
    visitor = _Visitor()
    MetadataWrapper(cst.parse_module(source)).visit(visitor)
    seen, counted, found = set(), Counter(), []
    for function, operator, lines, span, replacement in visitor.found:
        code = splice(source, span, replacement)
        if code in seen or not _compiles(code):
            continue
        seen.add(code)
        before, after = _diff_lines(source, code)
        identity = (file, function, operator, before, after)
        counted[identity] += 1
        key = hashlib.sha256(repr((*identity, counted[identity])).encode()).hexdigest()[:12]
        found.append(Mutant(file, function, operator, lines, before, after, span, replacement, key))
    return found


def draw(mutants, count):
    """Return *count* of *mutants*: of each file in proportion, and first of as many functions as possible.

    The same mutants give the same draw. An edit of one function keeps most of the sample of the others.
    """
    files = defaultdict(list)
    for mutant in mutants:
        files[mutant.file].append(mutant)
    quotas = {file: count * len(own) / max(1, len(mutants)) for file, own in files.items()}
    taken = {file: int(quota) for file, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda file: (taken[file] - quotas[file], file))
    for file in by_remainder[: min(count, len(mutants)) - sum(taken.values())]:
        taken[file] += 1
    return [mutant for file, own in sorted(files.items()) for mutant in _spread(own)[: taken[file]]]


def _spread(mutants):
    """Return *mutants* so that each pair of function and operator comes once before one repeats."""
    groups = defaultdict(list)
    for mutant in sorted(mutants, key=lambda each: each.key):
        groups[mutant.function, mutant.operator].append(mutant)
    ranked = [(rank, each.key, each) for group in groups.values() for rank, each in enumerate(group)]
    return [each for _, _, each in sorted(ranked, key=lambda row: row[:2])]


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ByteSpanPositionProvider)

    def __init__(self):
        super().__init__()
        self.found = []
        self._names = []
        self._depth = 0
        self._statement = None
        """The simple statement that is visited; while a default is, the function, whose body uses it."""
        self._untouched = set()
        """Texts and assertions, which no mutation may change or remove."""

    def on_visit(self, node):
        if _is_excluded(node) or node in self._untouched or (not self._depth and _is_module_text(node)):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
        if isinstance(node, cst.FunctionDef):
            self._depth += 1
        if isinstance(node, cst.SimpleStatementLine | cst.FunctionDef):
            self._statement = node
        if isinstance(node, cst.Raise):
            self._untouched |= {each for each in _walk(node) if isinstance(each, TEXTS)}
        if isinstance(node, cst.Call):
            self._untouched |= {each for each in node.args if each.keyword and each.keyword.value == "strict"}
        for operator, original, mutated in _mutations(node):
            if not self._changes_untouched(original, mutated):
                self._add(operator, original, mutated)
        return True

    def on_leave(self, original_node):
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef) and not _is_excluded(original_node):
            self._names.pop()
            self._depth -= isinstance(original_node, cst.FunctionDef)
        if original_node in (self._statement, getattr(self._statement, "params", None)):
            self._statement = None

    def _add(self, operator, original, mutated):
        span = self.get_metadata(ByteSpanPositionProvider, original)
        lines = [self.get_metadata(PositionProvider, each) for each in (original, self._statement) if each]
        first, last = min(each.start.line for each in lines), max(each.end.line for each in lines)
        code = cst.Module([]).code_for_node(mutated).strip()
        place = (span.start, span.start + span.length)
        self.found.append(
            (".".join(self._names) if self._depth else "", operator, (first, last), place, code)
        )

    def _changes_untouched(self, original, mutated):
        kept = {id(each) for each in _walk(mutated)}
        return any(each in self._untouched and id(each) not in kept for each in _walk(original))


def _mutations(node):
    """Return each mutation of *node*: the operator's name, the node to replace, and the replacement."""
    for kind, operator in mutation_operators:
        name = operator.__name__.removeprefix("operator_")
        if (
            not isinstance(node, kind)
            or name == "match"
            or (name == "arg_removal" and _needs_arguments(node))
        ):
            continue
        mutated = list(operator(node))
        for each in (
            mutated[:1] if name == "string" else mutated
        ):  # a change of case adds little to one of text
            yield name, node, each
    if isinstance(node, cst.If | cst.While):
        yield "negated_condition", node.test, _negate(node.test)
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and not _is_log(node.value):
        yield "removed_call", node, cst.Pass()


def _negate(test):
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    bracketed = test if test.lpar else test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), bracketed)


def _is_excluded(node):
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
        return True
    if isinstance(node, cst.FunctionDef):
        return any(_name(each.decorator) == "overload" for each in node.decorators)
    if isinstance(node, cst.If):
        return _name(node.test) == "TYPE_CHECKING"
    return _is_log(node) or (isinstance(node, cst.Call) and _name(node.func) in TYPES)


def _is_module_text(node):
    """Return whether *node*, outside of functions, is an alias of a type, a logger or a list of names."""
    if not isinstance(node, cst.Assign | cst.AnnAssign):
        return False
    target = node.target if isinstance(node, cst.AnnAssign) else node.targets[0].target
    name = _name(target)
    return name in {"log", "logger", "__all__"} or (name[:1].isupper() and not name.isupper())


def _is_log(node):
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    return _name(node.func.value) in LOGS


def _needs_arguments(node):
    return _name(node.func) in NOT_CALLED_WITH_LESS


def _name(node):
    """Return the last part of a dotted name; empty for anything else."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _walk(node):
    left = [node]
    while left:
        each = left.pop()
        yield each
        left.extend(each.children)


def _compiles(code):
    try:
        compile(code, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _diff_lines(old, new):
    """Return the lines in which *old* and *new* differ, each side on one line without indentation."""
    before, after = old.splitlines(), new.splitlines()
    start = next(i for i, (a, b) in enumerate(zip([*before, None], [*after, None], strict=False)) if a != b)
    while before[start + 1 :] and after[start + 1 :] and before[-1] == after[-1]:
        before.pop()
        after.pop()
    return tuple(" ".join(map(str.strip, lines[start:])) for lines in (before, after))
