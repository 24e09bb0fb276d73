"""A browser for the tests of the page."""

import pytest
from chromium import Browser, find_chromium


@pytest.fixture
def browser(tmp_path):
    """Return a browser with an empty page; skip the test if no Chromium is installed."""
    if find_chromium() is None:
        pytest.skip("no chromium is installed")
    browser = Browser(find_chromium(), tmp_path / "profile")
    yield browser
    browser.close()
