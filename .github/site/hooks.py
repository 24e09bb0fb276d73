"""Hooks of MkDocs: collect the pages of the navigation, and write those of the API.

A page keeps its path, so its relative links lead to the same pages as in the repository. A link to any other
file leads to the repository.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
IMAGES = (".github/compare.png", ".github/live.svg")
API = "api/"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
"""The path of a relative link or image, without its anchor."""


def on_config(config: MkDocsConfig) -> None:
    """Find the code of this checkout, not that of an installed package, and the address of the repository."""
    config.repo_url = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [str(ROOT)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of the navigation, and the images on them."""
    for name in (*list_pages(config.nav), *IMAGES):
        if name.startswith(API):
            source = {"content": write_api_page(name.removeprefix(API).removesuffix(".md"))}
        else:
            source = {"abs_src_path": str(ROOT / name)}
        file = File.generated(config, name, inclusion=InclusionLevel.INCLUDED, **source)
        file.dest_uri = file.dest_uri.removeprefix(".")  # many servers hide a folder whose name has a dot
        files.append(file)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to folders to their pages, and links to other files to the repository."""

    def resolve(match: re.Match[str]) -> str:
        name = normpath(join(dirname(page.file.src_uri), match[1]))
        if files.get_file_from_path(name) or not (ROOT / name).exists():
            return match[1]
        if files.get_file_from_path(f"{name}/README.md"):
            return f"{match[1].rstrip('/')}/README.md"
        return f"{config.repo_url}/blob/main/{name}"

    return LINK.sub(resolve, markdown)


def list_pages(navigation: Any) -> Iterator[str]:
    """Yield the paths of the pages in *navigation*, a tree of lists and of mappings from title to entry."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        yield from list_pages(list(navigation.values()))
    else:
        for entry in navigation:
            yield from list_pages(entry)


def write_api_page(module: str) -> str:
    """Return the page of *module* of ``stages``: its stub names what is public, or it has no stub."""
    stub = ROOT / "stages" / module.replace(".", "/") / "__init__.pyi"
    title = f"# `stages.{module}`\n\n"
    if not stub.exists():
        options = "{show_root_heading: false, show_root_toc_entry: false}"
        return f"{title}::: stages.{module}\n    options: {options}\n"
    names = re.findall(r" as (\w+)$", stub.read_text(encoding="utf-8"), re.MULTILINE)
    return title + "\n".join(f"::: stages.{module}.{name}\n" for name in names)
