"""The site of ``make docs``."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from chromium import Browser, find_chromium
from pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of a built site."""
    if not importlib.util.find_spec("mkdocs"):
        pytest.skip("mkdocs is not installed; run `pip install 'learner-pipeline[docs]'`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long  # `python tests/lint` checks the navigation, the links and their anchors
def test_site_is_built_without_a_warning(site):
    assert "LearnerBuilder" in (site / "index.html").read_text()


@pytest.mark.long  # `python tests/lint` checks that each part with public names has a page
def test_public_names_have_their_docstring_on_the_site(site):
    text = (site / "api/learner.html").read_text()

    assert 'id="stages.learner.LearnerBuilder.early_stopping"' in text
    assert "Stop the run early by" in text


@pytest.mark.long  # only the built site has an index
def test_search_finds_headings_of_pages_and_public_names(site):
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]

    found = {entry["location"] for entry in entries}
    assert {"index.html#kill-and-resume", "api/learner.html#stages.learner.LearnerBuilder"} <= found


@pytest.mark.long  # only the built site has these files
def test_site_loads_nothing_from_another_host(site):
    for path in site.rglob("*.html"):
        for line in path.read_text().splitlines():
            assert not any(f'{name}="http' in line for name in ("src", "data-src")), (path, line)
            assert not ("<link" in line and 'href="http' in line), (path, line)


@pytest.fixture
def browser(tmp_path):
    if find_chromium() is None:
        pytest.skip("no chromium is installed")
    browser = Browser(find_chromium(), tmp_path / "profile")
    yield browser
    browser.close()


@pytest.mark.long  # only a browser runs the search
def test_search_of_a_page_that_is_opened_as_a_file_shows_results(site, browser):
    titles = "[...document.querySelectorAll('.md-search-result__item h1')].map(title => title.textContent)"

    browser.open(f"{(site / 'index.html').as_uri()}?q=warm-up+schedules")
    browser.wait("document.querySelector('.md-search-result__item h1')")

    assert browser.run(titles)[0] == "Warm-up and schedules"
    assert browser.messages() == []


@pytest.mark.long  # only a browser has a color scheme
def test_colors_follow_the_system_until_the_reader_selects_them(site, browser):
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    toggle = "document.querySelector('.md-header__option label:not([hidden])')"

    browser.open(site / "index.html")
    browser.wait(f"{toggle} && {scheme} === 'default'")
    browser.resize(1400, scheme="dark")
    browser.wait(f"{scheme} === 'slate'")

    browser.run(f"{toggle}.click()")
    browser.wait(f"{scheme} === 'default'")
