"""The rules of prose in code, help and pages, and of names of functions and variables."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from command_line import walk_commands
from source_tree import Finding, SourceTree, line_of

CODE = ("stages", "pipeline")
COMMAND_LINE = "pipeline/cli.py"

MAX_PER_1000_WORDS = {
    r"\bwhere\b": 1.0,  # a condition is "if" or "when"; "where" is for places
    r"\b(?:tells?|told|says?|said|hears?)\b": 0.3,  # code returns, reports, prints, receives
}
ODD_OPENING = re.compile(r"(?:What|Whether|How|Of|One|Where|Who|Which)\b")

BANNED = {
    r"(?<!cancel: )go(?:es)? on|went on|gone on": "use continue or resume",
    r"anew": "use again, or new",
    r"another than": "use other than, or different from",
    r"(?<!there )is none|of none": "use there is no, or None",
    r"of before": "use previous",
    r"(?:is|are) to be": "use must be",
    r"by whatever door|[Tt]hree doors": "use however it is started, or entry point",
    r"mend(?:s|ed|ing)?": "use repair",
    r"torn": "use truncated or corrupt",
    r"ghosts?": "use orphaned or stale",
    r"goodbye|farewell": "name what happens, for example server outage",
    r"caretaker": "use watchdog",
    r"(?:left|leaves?) behind": "use stale or orphaned",
    r"spoil(?:t|s|ed)?": "use corrupt or damage",
    r"all the same": "use nevertheless, or leave it out",
    r"[Nn]obody": "use no process, or no user",
    r"dies|died": "use exits, ends or is killed",
    r"by hand": "use manually",
}
"""Pattern of whole words to what to write instead."""
ANY_BANNED = re.compile(rf"\b(?:{'|'.join(BANNED)})\b")
PARTICIPLE = re.compile(
    r"_?(?:[a-z]+ed|held|written|kept|shown|known|found|made|taken|left|said|told|drawn|chosen|sent|built|begun"
    r"|gone|lost|broken|frozen|torn|brought|bought|borrowed)(?:_[a-z0-9_]+)?"
)
NOT_PARTICIPLES = {"seed", "feed", "need", "embed", "speed", "unsigned"}
MAX_VAGUE_NAMES_PER_1000 = {"pipeline": 10, "stages": 10}
"""By folder, the most bindings of variables to a vague name."""
VAGUE_NAMES = {"each", "found", "own", "mine", "known", "kept", "held", "made", "here", "left"} | {
    *("given", "those", "these", "above")
}


def docstrings_rarely_have_unclear_verbs(tree: SourceTree) -> Iterator[Finding]:
    """The rates of "where" and of verbs of speech in docstrings are below their ceilings."""
    texts = [
        (module.path, each) for module in tree.modules(*CODE) for each in module.definitions if each.docstring
    ]
    words = sum(len(each.docstring.split()) for _, each in texts)
    for pattern, ceiling in MAX_PER_1000_WORDS.items():
        found = [
            Finding(path, each.line, f"{match[0]!r} in a docstring")
            for path, each in texts
            for match in re.finditer(pattern, each.docstring, re.IGNORECASE)
        ]
        if found and 1000 * len(found) / words >= ceiling:
            yield from found


def docstrings_of_functions_open_with_a_verb(tree: SourceTree) -> Iterator[Finding]:
    """No docstring of a function opens with "What", "Whether", "How" and so on."""
    for module in tree.modules(*CODE):
        for each in module.functions:
            if match := ODD_OPENING.match(each.docstring):
                yield Finding(module.path, each.line, f"{each.name}: the docstring opens with {match[0]!r}")


def names_of_functions_are_verbs(tree: SourceTree) -> Iterator[Finding]:
    """No name of a function begins with a participle, except for a property."""
    for module in tree.modules(*CODE):
        for each in module.functions:
            word = each.name.strip("_").partition("_")[0]
            is_participle = PARTICIPLE.fullmatch(each.name) and word not in NOT_PARTICIPLES
            if is_participle and not each.is_property:
                yield Finding(module.path, each.line, f"{each.name} is not a verb")


def variables_rarely_have_a_vague_name(tree: SourceTree) -> Iterator[Finding]:
    """The rates of variables with a vague name are at most their ceilings."""
    for folder, ceiling in MAX_VAGUE_NAMES_PER_1000.items():
        bindings = [
            (module.path, node)
            for module in tree.modules(folder)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        vague = [Finding(path, node.lineno, node.id) for path, node in bindings if node.id in VAGUE_NAMES]
        if 1000 * len(vague) > ceiling * len(bindings):
            yield from (
                each._replace(message=f"{each.message!r} does not say what it holds") for each in vague
            )


def text_has_no_banned_phrase(tree: SourceTree) -> Iterator[Finding]:
    """No module and no page has a banned phrase; the help of a command is in its module."""
    for name, text in tree.files.items():
        if name.endswith(".md") or (name.endswith(".py") and name.startswith(CODE)):
            for match in ANY_BANNED.finditer(text):
                advice = next(BANNED[pattern] for pattern in BANNED if re.fullmatch(pattern, match[0]))
                yield Finding(name, line_of(text, match.start()), f"{match[0]!r}: {advice}")


def commands_have_a_purpose_in_one_sentence(tree: SourceTree) -> Iterator[Finding]:
    """The help of each command and each group begins with an imperative sentence."""
    for name, command in _commands(tree):
        purpose = (command.help or "").strip().split("\n\n")[0].replace("\n", " ")
        is_sentence = re.fullmatch(r"[A-Z][a-z]+,? .*\.", purpose) and not ODD_OPENING.match(purpose)
        if not is_sentence or purpose.split()[0].endswith("s"):
            yield Finding(
                COMMAND_LINE, 1, f"the help of `{name}` does not begin with an imperative: {purpose!r}"
            )


def options_have_a_help_text(tree: SourceTree) -> Iterator[Finding]:
    """Each argument and each option of each command has a help text of whole sentences."""
    for name, command in _commands(tree):
        for parameter in command.params:
            text = getattr(parameter, "help", None) or ""
            if not re.fullmatch(r"(?s)[A-Z].*\.", text):
                yield Finding(
                    COMMAND_LINE, 1, f"the help of {parameter.name} of `{name}` is not a sentence: {text!r}"
                )


def _commands(tree: SourceTree) -> Iterator[tuple[str, Any]]:
    for words, command in walk_commands(tree.command):
        yield " ".join(("learner", *words)), command


RULES = (
    docstrings_rarely_have_unclear_verbs,
    docstrings_of_functions_open_with_a_verb,
    names_of_functions_are_verbs,
    variables_rarely_have_a_vague_name,
    text_has_no_banned_phrase,
    commands_have_a_purpose_in_one_sentence,
    options_have_a_help_text,
)
