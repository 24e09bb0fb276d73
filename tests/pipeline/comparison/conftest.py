"""A browser for the tests of the page."""

import pytest
from chromium import Browser, find_chromium


@pytest.fixture(scope="module")
def _browser(tmp_path_factory):
    """Return a browser that the tests of a module share; skip them if no Chromium is installed."""
    if find_chromium() is None:
        pytest.skip("no chromium is installed")
    browser = Browser(find_chromium(), tmp_path_factory.mktemp("browser") / "profile")
    yield browser
    browser.close()


@pytest.fixture
def browser(_browser):
    """Return a browser with an empty page and without events."""
    _browser.clear()
    return _browser
