"""The README of the package, with links to the repository, because an index of packages has no files."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")
"""A relative link or image: its exclamation mark, text and path."""


def make_links_absolute(text: str, repository: str) -> str:
    """Return *text* with links into the branch main of *repository*."""
    return LINK.sub(
        lambda link: f"{link[1]}{link[2]}({repository}/{'raw' if link[1] else 'blob'}/main/{link[3]})", text
    )


urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
setup(
    long_description=make_links_absolute(
        (ROOT / "README.md").read_text(encoding="utf-8"), urls["Repository"]
    ),
    long_description_content_type="text/markdown",
)
