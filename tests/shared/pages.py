"""The Markdown pages of the project, with their code blocks, commands and links."""

import re
from dataclasses import dataclass

from repository import ROOT, list_files

PROJECT_TEMPLATES = ("pipeline/scaffold/template/", "pipeline/scaffold/templates/")
"""The pages in new projects of `learner init`, which have their own tests."""


@dataclass(frozen=True)
class Page:
    """A Markdown file of the project."""

    name: str
    """The path of the page, relative to the root of the project."""
    text: str

    def blocks(self, *languages):
        """Return the text of each code block in one of *languages*."""
        found = re.findall(r"^```(\w+)\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)
        return [text for language, text in found if language in languages]

    def commands(self):
        """Return each line of the console blocks that starts with ``$``, without comments and the prompt."""
        lines = [line for block in self.blocks("console") for line in block.splitlines()]
        return [re.sub(r"\s+#.*", "", line[2:]) for line in lines if line.startswith("$ ")]

    def section(self, title):
        """Return the text from the heading *title* to the next heading of any level."""
        parts = re.split(rf"^##+ {re.escape(title)}\n", self.text, flags=re.MULTILINE)
        assert len(parts) == 2, f"{self.name} has {len(parts) - 1} headings {title!r}"
        return re.split(r"^#+ ", parts[1], flags=re.MULTILINE)[0]

    def links(self):
        """Return path and anchor of each link in this repository; the path is empty for this page."""
        text = re.sub(r"^```.*?^```", "", self.text, flags=re.DOTALL | re.MULTILINE)
        targets = re.findall(r"\]\(([^)\s]+)\)", text)
        return [tuple(target.partition("#")[::2]) for target in targets if "://" not in target]

    def sections(self):
        """Return the text below each heading, up to the next of the same or a higher level, by its anchor."""
        text = re.sub(
            r"^```.*?^```",
            lambda block: re.sub("^#", " #", block[0], flags=re.M),
            self.text,
            flags=re.DOTALL | re.M,
        )
        parts = list(re.finditer(r"^(#+) (.+)\n", text, re.MULTILINE))
        found = {}
        for number, part in enumerate(parts):
            ends = (other.start() for other in parts[number + 1 :] if len(other[1]) <= len(part[1]))
            anchor = anchor_of(part[2])
            count = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", known) is not None for known in found)
            found[f"{anchor}-{count}" if count else anchor] = text[part.end() : next(ends, len(text))]
        return found


def anchor_of(heading):
    """Return the anchor of a heading, as GitHub and the site make it."""
    words = re.sub(r"\]\([^)]*\)", "", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def pages():
    """Return the pages that git tracks or would track, in the order of their names."""
    names = [name for name in list_files() if name.endswith(".md")]
    return [page(name) for name in names if not name.startswith(PROJECT_TEMPLATES)]


def page(name):
    """Return the page *name*, a path relative to the root of the project."""
    return Page(name, (ROOT / name).read_text())
