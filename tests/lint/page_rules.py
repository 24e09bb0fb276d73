"""The rules of documentation: its commands, options and links exist, and its pages have a readable length."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from posixpath import dirname, join, normpath

from command_line import USAGE_ERROR, parse, walk_commands
from pages import Page
from ruamel.yaml import YAML
from source_tree import Finding, Module, SourceTree, line_of, parse_module

README = "README.md"
SITE = "mkdocs.yml"
QUESTIONS = "tests/lint/questions.toml"
TROUBLESHOOTING = "pipeline/doctor/troubleshooting.md"
API_PAGES = "api/"
"""The folder of the pages that the site makes of docstrings."""
MAX_README_LINES = 200
PAGE_LINES = range(20, 91)
OTHER_PROGRAMS = {".", "cd", "git", "pip", "prefect", "python3", "export", "kill", "pytest"}
PARSED_BY_TESTS = {"dvc", "torchrun"}
"""Programs whose parsers take long to import; tests/test_pages.py parses their commands."""
OTHER_OPTIONS = {
    "--requeue": "sbatch",
    "--set-param": "dvc exp run",
    "--user": "systemctl",
    "--max-restarts": "torchrun",
    "--help": "every program",
}


def commands_of_pages_are_accepted(tree: SourceTree) -> Iterator[Finding]:
    """Each command of a page is parsed as by the real program; a placeholder in capitals is a valid value."""
    for page in tree.pages:
        for command in page.commands():
            for part in re.split(r" && | ; ", command):
                if problem := _describe_problem(tree, *shlex.split(part)):
                    yield Finding(page.name, _line(page, command), f"{part}: {problem}")


def _describe_problem(tree: SourceTree, program: str, *arguments: str) -> str | None:
    if program == "learner":
        try:
            parse(arguments, tree.command)
        except USAGE_ERROR as error:
            return error.format_message()
    elif program == "make":
        if f"\n{arguments[0]}:" not in tree.files["Makefile"]:
            return "the Makefile has no such target"
    elif program == "python":
        if arguments[0] not in tree.paths | _programs_on_pages(tree) | {"-m"}:
            return "there is no such file"
    elif program not in OTHER_PROGRAMS | PARSED_BY_TESTS:
        return "unknown program"
    return None


def _programs_on_pages(tree: SourceTree) -> set[str]:
    """Return the names of the files that pages show, which are comments in the first lines."""
    blocks = (block for page in tree.pages for block in page.blocks("python"))
    return {match[1] for block in blocks if (match := re.match(r"# (\w+\.py)\n", block))}


def programs_on_pages_import_names_that_exist(tree: SourceTree) -> Iterator[Finding]:
    """Each Python block is valid, and what it imports from this project exists; `make long` runs them."""
    for page in tree.pages:
        for block in page.blocks("python"):
            try:
                program = Module(page.name, block)
            except SyntaxError as error:
                yield Finding(page.name, _line(page, block), f"the program cannot be parsed: {error.msg}")
                continue
            for each in program.imports:
                if each.name.startswith(("stages.", "pipeline.")) and not _exists(tree, each.name):
                    line = _line(page, block) + each.line - 1
                    yield Finding(page.name, line, f"there is no {each.name}")


def _exists(tree: SourceTree, name: str) -> bool:
    """Return whether *name* is a module, or a public name of one."""
    path = name.replace(".", "/")
    if path in tree.paths or f"{path}.py" in tree.files:
        return True
    parent, _, member = name.rpartition(".")
    base = parent.replace(".", "/")
    files = (f"{base}.py", f"{base}/__init__.py", f"{base}/__init__.pyi")
    return any(member in parse_module(file, tree.files[file]).names for file in files if file in tree.files)


def commands_are_documented(tree: SourceTree) -> Iterator[Finding]:
    """Each command of learner is on a page."""
    documented = {name for page in tree.pages for name in re.findall(r"learner ([\w-]+)", page.text)}
    for words, _ in walk_commands(tree.command):
        if len(words) == 1 and words[0] not in documented:
            yield Finding(README, 1, f"no page names `learner {words[0]}`")


def options_on_pages_exist(tree: SourceTree) -> Iterator[Finding]:
    """Each option on a page is one of learner, of a program of this repository, or of a known other one."""
    known = set(OTHER_OPTIONS)
    for _, command in walk_commands(tree.command):
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    for name, text in tree.files.items():
        if name.startswith(("benchmarks/", "tests/")) and name.endswith(".py"):
            known |= set(re.findall(r'"(--[a-z][\w-]+)"', text))
    for page in tree.pages:
        for match in re.finditer(r"`(--[a-z][\w-]+)", page.text):
            if match[1] not in known:
                yield Finding(page.name, line_of(page.text, match.start()), f"no program has {match[1]}")


def links_of_pages_resolve(tree: SourceTree) -> Iterator[Finding]:
    """Each relative link of a page is a file or folder of the repository, and its anchor a heading."""
    anchors = {page.name: page.sections().keys() for page in tree.pages}
    for page in tree.pages:
        for target, anchor in page.links():
            name = normpath(join(dirname(page.name), target)) if target else page.name
            if name not in tree.paths:
                yield Finding(page.name, _line(page, f"]({target}"), f"{target} does not exist")
            elif anchor and anchor not in anchors.get(name, ()):
                yield Finding(
                    page.name, _line(page, f"]({target}#{anchor}"), f"{name} has no heading #{anchor}"
                )


def pages_are_in_the_navigation(tree: SourceTree) -> Iterator[Finding]:
    """Each page is in the navigation of the site, or in its list of pages that the site does not have."""
    site = YAML(typ="safe").load(tree.files.get(SITE, "{}"))
    excluded = {name.removeprefix("/") for name in site.get("exclude_docs", "").split()}
    listed = {name for name in _leaves(site.get("nav", [])) if not name.startswith(API_PAGES)}
    names = {page.name for page in tree.pages}
    for name in sorted(names - listed - excluded):
        yield Finding(SITE, 1, f"{name} is neither in nav nor in exclude_docs")
    for name in sorted((listed | excluded) - names | listed & excluded):
        yield Finding(SITE, 1, f"{name} does not exist, or is in both lists")
    packages = {f"{API_PAGES}{name}.md" for name in _public_packages(tree)}
    for name in sorted(packages - set(_leaves(site.get("nav", [])))):
        yield Finding(SITE, 1, f"{name}, the API of a part, is not in nav")


def _public_packages(tree: SourceTree) -> Iterator[str]:
    for name in tree.files:
        if match := re.fullmatch(r"stages/(.+)/__init__\.pyi", name):
            yield match[1].replace("/", ".")


def _leaves(navigation: object) -> Iterator[str]:
    """Yield the pages in *navigation*, a tree of lists and of mappings from title to entry."""
    if isinstance(navigation, str):
        yield navigation
        return
    entries = navigation.values() if isinstance(navigation, dict) else navigation
    for entry in entries:
        yield from _leaves(entry)


def questions_are_answered(tree: SourceTree) -> Iterator[Finding]:
    """The section that a question names has the answer, on a page that two links from the README lead to."""
    text = tree.files.get(QUESTIONS, "")
    sections = {page.name: page.sections() for page in tree.pages}
    reachable = _reach(tree, links=2)
    for question in tomllib.loads(text).get("question", ()):
        name, anchor = question["page"], question["anchor"]
        line = line_of(text, text.find(question["text"]))
        if anchor not in sections.get(name, ()):
            yield Finding(QUESTIONS, line, f"{name} has no heading #{anchor}")
        elif question["answer"] not in sections[name][anchor]:
            yield Finding(QUESTIONS, line, f"{name}#{anchor} does not contain {question['answer']!r}")
        if name not in reachable:
            yield Finding(QUESTIONS, line, f"{name} is more than two links from {README}")


def _reach(tree: SourceTree, *, links: int) -> set[str]:
    """Return the pages to which at most *links* links lead from the README."""
    targets = {
        page.name: {normpath(join(dirname(page.name), target)) for target, _ in page.links() if target}
        for page in tree.pages
    }
    reached = {README}
    for _ in range(links):
        found = set().union(*(targets.get(name, set()) for name in reached))
        reached |= found | {f"{name}/{README}" for name in found}
    return reached


def messages_of_troubleshooting_exist(tree: SourceTree) -> Iterator[Finding]:
    """A message that is a heading of the page of troubleshooting is a text of the code."""
    page = next((page for page in tree.pages if page.name == TROUBLESHOOTING), Page(TROUBLESHOOTING, ""))
    code = "".join(module.text for module in tree.modules("stages", "pipeline"))
    joined = re.sub(r'"\s*\n\s*f?"', "", code)
    for match in re.finditer(r"^#+ `(.+)`$", page.text, re.MULTILINE):
        if match[1] not in joined:
            yield Finding(page.name, line_of(page.text, match.start()), f"no message has {match[1]!r}")


def named_tests_exist(tree: SourceTree) -> Iterator[Finding]:
    """Each file of tests/ on a page or in the Makefile exists, and so does a test that is named with it."""
    texts = {page.name: page.text for page in tree.pages} | {"Makefile": tree.files.get("Makefile", "")}
    for name, text in texts.items():
        for match in re.finditer(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", text):
            file, test = match.groups()
            if file not in tree.files or (test and f"def {test}(" not in tree.files[file]):
                yield Finding(name, line_of(text, match.start()), f"there is no {match[0]}")


def parts_have_a_page_of_readable_length(tree: SourceTree) -> Iterator[Finding]:
    """Each part of stages/ and each package of pipeline/ has a README.md of 20 to 90 lines."""
    for folder in ("stages", "pipeline"):
        for part in sorted(tree.packages(folder)):
            name = f"{folder}/{part}/README.md"
            lines = len(tree.files.get(name, "").splitlines())
            if lines not in PAGE_LINES:
                yield Finding(name, lines or 1, f"{lines} lines; write {PAGE_LINES[0]} to {PAGE_LINES[-1]}")


def readme_is_short(tree: SourceTree) -> Iterator[Finding]:
    """The README has at most 200 lines."""
    lines = len(tree.files[README].splitlines())
    if lines > MAX_README_LINES:
        yield Finding(README, lines, f"{lines} lines; write at most {MAX_README_LINES}")


def make_repro_prints_the_model_and_the_next_command(tree: SourceTree) -> Iterator[Finding]:
    """The target repro ends with the path of the model in dvc.yaml, and with a command that exists."""
    recipe = re.search(r"^repro:.*\n((?:\t.*\n)+)", tree.files["Makefile"], re.MULTILINE)[1]
    last = recipe.splitlines()[-1]
    commands = re.findall(r"'learner ([\w-]+)'", last)
    paths = next(each["paths"] for each in tree.dvc_yaml["vars"] if "paths" in each)
    known = {words[0] for words, _ in walk_commands(tree.command) if words}
    if "echo" not in last or paths["model"] not in last or not commands or not set(commands) <= known:
        yield Finding("Makefile", 1, "repro does not end with the path of the model and the next command")


def _line(page: Page, text: str) -> int:
    return line_of(page.text, page.text.find(text))


RULES = (
    commands_of_pages_are_accepted,
    programs_on_pages_import_names_that_exist,
    commands_are_documented,
    options_on_pages_exist,
    links_of_pages_resolve,
    pages_are_in_the_navigation,
    questions_are_answered,
    messages_of_troubleshooting_exist,
    named_tests_exist,
    parts_have_a_page_of_readable_length,
    readme_is_short,
    make_repro_prints_the_model_and_the_next_command,
)
