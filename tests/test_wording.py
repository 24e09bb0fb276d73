"""The prose of code, help and pages stays within the ceilings of the style guide, without banned phrases."""

import ast
import re
from collections.abc import Iterator

import pytest
from command_line import walk_commands
from pages import ROOT, pages

CODE = [path for folder in ("stages", "pipeline") for path in sorted((ROOT / folder).rglob("*.py"))]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

CEILINGS = {
    r"\bwhere\b": 1.0,  # per 1,000 words; a condition is "if" or "when", "where" is for places
    r"\b(?:tells?|told|says?|said|hears?)\b": 0.3,  # per 1,000 words; code returns, reports, prints, receives
}
ODD_OPENING = re.compile(r"(?:What|Whether|How|Of|One|Where|Who|Which)\b")
MAX_ODD_OPENINGS = 0.02  # of all docstrings of functions, which are verb phrases

BANNED = {
    r"(?<!cancel: )\bgo(?:es)? on\b|\bwent on\b|\bgone on\b": "use continue or resume",
    r"\banew\b": "use again, or new",
    r"\banother than\b": "use other than, or different from",
    r"(?<!there )\bis none\b|\bof none\b": "use there is no, or None",
    r"\bof before\b": "use previous",
    r"\b(?:is|are) to be\b": "use must be",
    r"\bby whatever door\b|\b[Tt]hree doors\b": "use however it is started, or entry point",
    r"\bmend(?:s|ed|ing)?\b": "use repair",
    r"\btorn\b": "use truncated or corrupt",
    r"\bghosts?\b": "use orphaned or stale",
    r"\bgoodbye\b|\bfarewell\b": "name what happens, for example server outage",
    r"\bcaretaker\b": "use watchdog",
    r"\b(?:left|leaves?) behind\b": "use stale or orphaned",
    r"\bspoil(?:t|s|ed)?\b": "use corrupt or damage",
    r"\ball the same\b": "use nevertheless, or leave it out",
    r"\b[Nn]obody\b": "use no process, or no user",
    r"\b(?:dies|died)\b": "use exits, ends or is killed",
    r"\bby hand\b": "use manually",
}
PARTICIPLE = re.compile(
    r"_?(?:[a-z]+ed|held|written|kept|shown|known|found|made|taken|left|said|told|drawn|chosen|sent|built|begun"
    r"|gone|lost|broken|frozen|torn|brought|bought|borrowed)(?:_[a-z0-9_]+)?"
)
NOT_PARTICIPLES = {"seed", "feed", "need", "embed", "speed"}
MAX_PARTICIPLES = 10  # functions are verbs


def docstrings(*kinds):
    """Return the docstrings of all nodes of *kinds* in the code."""
    nodes = [
        node for path in CODE for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)
    ]
    return [text for text in map(ast.get_docstring, nodes) if text]


@pytest.mark.parametrize("pattern", CEILINGS)
def test_rate_of_a_word_in_docstrings_is_below_its_ceiling(pattern):
    text = " ".join(docstrings(ast.Module, ast.ClassDef, *FUNCTIONS))

    rate = 1000 * len(re.findall(pattern, text, re.IGNORECASE)) / len(text.split())

    assert rate < CEILINGS[pattern]


def test_docstrings_of_functions_open_with_a_verb():
    texts = docstrings(*FUNCTIONS)

    odd = [text.partition("\n")[0] for text in texts if ODD_OPENING.match(text)]

    assert len(odd) / len(texts) < MAX_ODD_OPENINGS, odd


def test_names_of_functions_are_verbs():
    names = [
        node.name
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTIONS)
    ]

    participles = [
        name
        for name in names
        if PARTICIPLE.fullmatch(name) and name.strip("_").partition("_")[0] not in NOT_PARTICIPLES
    ]

    assert len(participles) < MAX_PARTICIPLES, participles


def decorator_name(decorator):
    return getattr(decorator, "id", getattr(decorator, "attr", ""))


@pytest.mark.parametrize("pattern", BANNED, ids=BANNED.values())
def test_no_banned_phrase(pattern):
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(pattern, line)
    ]

    assert not found, BANNED[pattern]


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module, each page and each command's help."""
    for path in CODE:
        yield path.relative_to(ROOT).as_posix(), path.read_text()
    for page in pages():
        yield page.name, page.text
    for path in sorted(ROOT.glob("pipeline/scaffold/template*/**/README.md")):
        yield path.relative_to(ROOT).as_posix(), path.read_text()
    for words, command in walk_commands():
        options = [getattr(parameter, "help", None) or "" for parameter in command.params]
        yield " ".join(words), "\n".join([command.help or "", *options])


def test_every_command_has_a_purpose_in_one_sentence():
    for words, command in walk_commands():
        purpose = (command.help or "").strip().splitlines()[0]
        assert re.fullmatch(r"[A-Z].*[.:]", purpose), f"{words}: {purpose!r}"
        assert not ODD_OPENING.match(purpose), words


def test_every_option_has_a_help_text():
    silent = [
        f"{words} {parameter.name}"
        for words, command in walk_commands()
        for parameter in command.params
        if not getattr(parameter, "help", None) and parameter.name != "help"
    ]

    assert not silent
